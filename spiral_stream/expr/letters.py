"""Lower and upper case of letters: the simple mappings of Unicode 14, one letter to one letter.

Written out here, since Python, Arrow and DuckDB each follow a version of Unicode of their own, and a plan must choose the same
rows with every one. A new version changes letters that were there: U+0264 got an upper case in Unicode 16. Letters whose other
case is several letters stay as they are. Compared with DuckDB 2.0 over all of Unicode by a test.
"""

from functools import cache
from re import compile as pattern
from typing import Final

# "first-last/step+shift", or "letter+shift", in hexadecimal digits
_LOWER: Final = """
    41-5a/1+20 c0-d6/1+20 d8-de/1+20 100-12e/2+1 130-c7 132-136/2+1 139-147/2+1 14a-176/2+1 178-79 179-17d/2+1 181+d2
    182-184/2+1 186+ce 187+1 189-18a/1+cd 18b+1 18e+4f 18f+ca 190+cb 191+1 193+cd 194+cf 196+d3 197+d1 198+1 19c+d3
    19d+d5 19f+d6 1a0-1a4/2+1 1a6+da 1a7+1 1a9+da 1ac+1 1ae+da 1af+1 1b1-1b2/1+d9 1b3-1b5/2+1 1b7+db 1b8+1 1bc+1
    1c4+2 1c5+1 1c7+2 1c8+1 1ca+2 1cb-1db/2+1 1de-1ee/2+1 1f1+2 1f2-1f4/2+1 1f6-61 1f7-38 1f8-21e/2+1 220-82
    222-232/2+1 23a+2a2b 23b+1 23d-a3 23e+2a28 241+1 243-c3 244+45 245+47 246-24e/2+1 370-372/2+1 376+1 37f+74 386+26
    388-38a/1+25 38c+40 38e-38f/1+3f 391-3a1/1+20 3a3-3ab/1+20 3cf+8 3d8-3ee/2+1 3f4-3c 3f7+1 3f9-7 3fa+1
    3fd-3ff/1-82 400-40f/1+50 410-42f/1+20 460-480/2+1 48a-4be/2+1 4c0+f 4c1-4cd/2+1 4d0-52e/2+1 531-556/1+30
    10a0-10c5/1+1c60 10c7+1c60 10cd+1c60 13a0-13ef/1+97d0 13f0-13f5/1+8 1c90-1cba/1-bc0 1cbd-1cbf/1-bc0 1e00-1e94/2+1
    1e9e-1dbf 1ea0-1efe/2+1 1f08-1f0f/1-8 1f18-1f1d/1-8 1f28-1f2f/1-8 1f38-1f3f/1-8 1f48-1f4d/1-8 1f59-1f5f/2-8
    1f68-1f6f/1-8 1f88-1f8f/1-8 1f98-1f9f/1-8 1fa8-1faf/1-8 1fb8-1fb9/1-8 1fba-1fbb/1-4a 1fbc-9 1fc8-1fcb/1-56 1fcc-9
    1fd8-1fd9/1-8 1fda-1fdb/1-64 1fe8-1fe9/1-8 1fea-1feb/1-70 1fec-7 1ff8-1ff9/1-80 1ffa-1ffb/1-7e 1ffc-9 2126-1d5d
    212a-20bf 212b-2046 2132+1c 2160-216f/1+10 2183+1 24b6-24cf/1+1a 2c00-2c2f/1+30 2c60+1 2c62-29f7 2c63-ee6
    2c64-29e7 2c67-2c6b/2+1 2c6d-2a1c 2c6e-29fd 2c6f-2a1f 2c70-2a1e 2c72+1 2c75+1 2c7e-2c7f/1-2a3f 2c80-2ce2/2+1
    2ceb-2ced/2+1 2cf2+1 a640-a66c/2+1 a680-a69a/2+1 a722-a72e/2+1 a732-a76e/2+1 a779-a77b/2+1 a77d-8a04
    a77e-a786/2+1 a78b+1 a78d-a528 a790-a792/2+1 a796-a7a8/2+1 a7aa-a544 a7ab-a54f a7ac-a54b a7ad-a541 a7ae-a544
    a7b0-a512 a7b1-a52a a7b2-a515 a7b3+3a0 a7b4-a7c2/2+1 a7c4-30 a7c5-a543 a7c6-8a38 a7c7-a7c9/2+1 a7d0+1
    a7d6-a7d8/2+1 a7f5+1 ff21-ff3a/1+20 10400-10427/1+28 104b0-104d3/1+28 10570-10594/2+27 10571-10579/2+27
    1057d-10589/2+27 1058d-10591/2+27 10595+27 10c80-10cb2/1+40 118a0-118bf/1+20 16e40-16e5f/1+20 1e900-1e921/1+22
"""
_UPPER: Final = """
    69-6b/2-20 b5+2e7 e5-20 131-e8 17f-12c 1c5-1 1c6-2 1c8-1 1c9-2 1cb-1 1cc-2 1f2-1 1f3-2 345+54 3b8-20 3c2-1f
    3c9-20 3d0-3e 3d1-39 3d5-2f 3d6-36 3f0-56 3f1-50 3f5-60 1c80-186e 1c81-186d 1c82-1864 1c83-1c84/1-1862 1c85-1863
    1c86-185c 1c87-1825 1c88+89c2 1e9b-3b 1fbe-1c25
"""  # what is not the reverse of _LOWER, or where two letters have one lower case
_RUN: Final = pattern(r"([0-9a-f]+)(?:-([0-9a-f]+)/([12]))?([+-][0-9a-f]+)")


@cache
def lower_letters() -> dict[int, int]:
    """Return the lower case of each letter that has another one, for `str.translate`."""
    return _read(_LOWER)


@cache
def upper_letters() -> dict[int, int]:
    """Return the upper case of each letter that has another one, for `str.translate`."""
    return {**{low: letter for letter, low in _read(_LOWER).items()}, **_read(_UPPER)}


def _read(runs: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for run in runs.split():
        read = _RUN.fullmatch(run)
        assert read is not None, run
        first, last, step, shift = read.groups()
        begin, end = int(first, 16), int(last or first, 16)
        found.update({letter: letter + int(shift, 16) for letter in range(begin, end + 1, int(step or 1))})
    return found
