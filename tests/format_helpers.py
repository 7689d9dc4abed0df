"""Small files in the formats of publishers."""

import json
import tarfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def image(path: Path, seed: int, size: int | tuple[int, int], form: str = "PNG") -> np.ndarray:
    """A random image in a file (PNG is lossless), and its pixels (C, H, W)."""
    width, height = (size, size) if isinstance(size, int) else size
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, form, quality=95)
    return pixels.transpose(2, 0, 1)


def sound(path: Path, values: np.ndarray, rate: int, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(values.astype("<i2").tobytes())


def leaf(
    path: Path, users: dict[str, tuple[list[Any], list[Any]]], wrong_count: bool = False
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    counts = [len(y) + wrong_count for _, y in users.values()]
    content = {"users": list(users), "num_samples": counts, "user_data": data}
    path.write_text(json.dumps(content))


def tarred(path: Path, folder: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, arcname=".")
