import numpy as np
import pyarrow as pa

from spiral_stream.sources.files.lru import Recent


def test_decoded_columns_are_kept_up_to_a_number_of_bytes() -> None:
    kept = Recent(limit_bytes=100)
    columns = [pa.chunked_array([pa.array(np.arange(5))]) for _ in range(4)]  # 40 bytes each
    for i in range(3):
        kept.put((i, 0, "n"), columns[i])

    assert kept.get((0, 0, "n")) is None
    assert kept.get((1, 0, "n")) is columns[1]
    kept.put((3, 0, "n"), columns[3])
    assert kept.get((2, 0, "n")) is None  # (1) was used later
    kept.clear()
    assert kept.get((3, 0, "n")) is None
