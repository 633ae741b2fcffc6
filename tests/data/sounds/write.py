"""Write recordings by libsndfile, oggenc, sox and ffmpeg, with the values that libsndfile or the ffmpeg command reads of them.

Run it where `soundfile`, and the commands ffmpeg, sox and oggenc are installed: ``python write.py``. values.npz has int16 values,
shape [C, S], of each file.
"""

import subprocess
from pathlib import Path

import numpy as np
import soundfile

HERE = Path(__file__).parent
BY_COMMAND = {
    "sox.ogg": "sox in.wav sox.ogg",
    "oggenc.ogg": "oggenc -Q -q 8 -o oggenc.ogg in.wav",
    "ffmpeg.ogg": "ffmpeg -nostdin -v error -y -i in.wav -c:a libvorbis ffmpeg.ogg",
    "ffmpeg.opus": "ffmpeg -nostdin -v error -y -i in.wav -c:a libopus -ar 48000 -b:a 96k ffmpeg.opus",
    "ffmpeg.m4a": "ffmpeg -nostdin -v error -y -i in.wav -c:a aac -b:a 24k ffmpeg.m4a",
    "ffmpeg_alac.m4a": "ffmpeg -nostdin -v error -y -i in.wav -c:a alac ffmpeg_alac.m4a",
    "ffmpeg.mp3": "ffmpeg -nostdin -v error -y -i in.wav -c:a libmp3lame -b:a 24k ffmpeg.mp3",
}
BY_SNDFILE = {
    "page.ogg": ("OGG", "VORBIS"),
    "stereo.ogg": ("OGG", "VORBIS"),
    "ima.wav": ("WAV", "IMA_ADPCM"),
    "ms.wav": ("WAV", "MS_ADPCM"),
}


def sweep(rate: int, channels: int, seconds: float) -> np.ndarray:
    times = np.arange(round(rate * seconds) + 17) / rate
    return np.stack([0.4 * np.sin(2 * np.pi * (200 * times + (300 + 90 * k) * times**2)) for k in range(channels)], 1)


def main() -> None:
    rate, values = 8_000, {}
    soundfile.write(HERE / "in.wav", sweep(rate, 1, 0.8), rate, subtype="PCM_16")
    for name, (form, subtype) in BY_SNDFILE.items():
        soundfile.write(HERE / name, sweep(rate, 2 if name == "stereo.ogg" else 1, 0.8), rate, subtype, format=form)
    for command in BY_COMMAND.values():
        subprocess.run(command.split(), cwd=HERE, check=True)
    for name in (*BY_SNDFILE, *BY_COMMAND):
        try:
            found, _ = soundfile.read(HERE / name, dtype="int16", always_2d=True)
        except soundfile.LibsndfileError:
            raw = subprocess.run(
                ["ffmpeg", "-nostdin", "-v", "error", "-i", name, "-f", "s16le", "-"],
                cwd=HERE,
                check=True,
                capture_output=True,
            ).stdout
            found = np.frombuffer(raw, np.int16)[:, None]
        values[name] = found.T
    np.savez_compressed(HERE / "values.npz", **values)
    (HERE / "in.wav").unlink()


if __name__ == "__main__":
    main()
