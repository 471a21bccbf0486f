"""A model with decisions made up and with hostile names, as a run leaves it, and images for it."""

import io
from pathlib import Path

import torch
from PIL import Image

from percentmatch.data.scenes import draw_scenes
from percentmatch.models import Card, Decisions, build_classifier, classifier_bytes

CLASSES = ("disc", "<img src=x onerror=alert(1)>", '"; DROP', "übrige\u202e", *(f"class {n}" for n in range(9)))
SIZE = len(CLASSES)
SHIFT = tuple(float(n % 5 - 2) for n in range(SIZE))
DECISIONS = Decisions((1.0,) * SIZE, SHIFT, tuple(0.3 + 0.05 * (n % 3) for n in range(SIZE)), "F1")


def card(task: str = "multi-label", decisions: Decisions | None = DECISIONS) -> Card:
    size, colour = (32, 37, "squash"), ((0.5,) * 3, (0.5,) * 3)
    return Card("test_resnet", "linear", 0.0, *size, task, CLASSES, *colour, "0.1.0", decisions)  # ty: ignore


def save_model(folder: Path, saved: Card) -> Path:
    torch.manual_seed(0)
    model = build_classifier(saved.backbone, num_classes=SIZE, head=saved.head, image_size=saved.image_size)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(classifier_bytes(model.eval(), saved))
    return folder


def encoded(form: str, n: int = 0, **options: object) -> bytes:
    """A scene as the content of an image file."""
    file = io.BytesIO()
    Image.fromarray(draw_scenes(n + 1, size=64).pixels[n].permute(1, 2, 0).numpy()).save(file, form, **options)
    return file.getvalue()
