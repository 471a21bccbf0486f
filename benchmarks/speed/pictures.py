"""JPEG files for those who have no data at hand."""

import io
from pathlib import Path

import torch
from PIL import Image
from torch import Generator
from torch.nn import functional as F

WIDTH, HEIGHT, QUALITY = 500, 375, 90
DIFFERENT = 16  # the others are copies under other names; each is read and decoded by itself all the same


def write_photographs(folder: Path, number: int) -> list[Path]:
    """So many files, of about the size and detail of photographs."""
    generator = Generator().manual_seed(0)
    contents = []
    for _ in range(min(number, DIFFERENT)):
        buffer = io.BytesIO()
        _photograph(generator).save(buffer, "JPEG", quality=QUALITY)
        contents.append(buffer.getvalue())
    paths = [folder / f"{n:06d}.jpg" for n in range(number)]
    for n, path in enumerate(paths):
        path.write_bytes(contents[n % DIFFERENT])
    return paths


def _photograph(generator: Generator) -> Image.Image:
    """Clouds of every width from the whole to one pixel, the wide ones stronger, mostly grey."""
    pixels = torch.full((1, 3, 3, 4), 110.0)
    for octave in reversed(range(8)):
        noise = torch.randn(1, 4, *pixels.shape[2:], generator=generator)  # grey, red, green, blue
        pixels = pixels + min(4 * 1.9**octave, 26) * (noise[:, :1] + 0.35 * noise[:, 1:])
        if octave:
            pixels = F.interpolate(pixels, scale_factor=2, mode="bicubic")  # (1, 3, 384, 512) in the end
    return Image.fromarray(pixels[0, :, :HEIGHT, :WIDTH].clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy())
