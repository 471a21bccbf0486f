"""A model as a run leaves it, without the training: random weights, and decisions made up."""

from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from percentmatch.data.scenes import draw_scenes
from percentmatch.models import Card, Decisions, build_classifier, classifier_bytes

CLASSES = ("disc", "big square", "=risky")
DECISIONS = Decisions((0.5, 1.0, 2.0), (1.0, -0.5, 0.25), (0.6, 0.4, 0.5), "F1")
CARD = Card("test_resnet", "linear", 0.0, 32, 37, "squash", "multi-label", CLASSES, (0.5,) * 3, (0.5,) * 3, "0.1.0")
CARD = replace(CARD, decisions=DECISIONS)


def save_model(file: Path, card: Card = CARD) -> Path:
    torch.manual_seed(0)
    model = build_classifier(
        card.backbone, num_classes=len(card.class_names), head=card.head, image_size=card.image_size
    )
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(classifier_bytes(model.eval(), card))
    return file


def save_photos(folder: Path, count: int) -> list[Path]:
    """PNG files of different sizes."""
    folder.mkdir()
    files = []
    for n, pixels in enumerate(draw_scenes(count, size=64).pixels):
        files.append(folder / f"{n:03}.png")
        Image.fromarray(pixels.permute(1, 2, 0).numpy()[: 40 + n % 20]).save(files[-1])
    return files
