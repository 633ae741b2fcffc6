"""The probe imports PyAV only when it is called."""

import subprocess
import sys


def test_importing_the_probe_imports_no_av() -> None:
    code = "import sys; import spiral_stream.decoders.video.probe; print('av' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert found.stdout.strip() == "False"
