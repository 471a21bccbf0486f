"""The usual way to train on image files, to compare with: a DataLoader, Pillow's views, an eager step.

It is meant to be a good loop of its kind. An unlabeled file is decoded once for both of its views, the images are made
small before they are changed, the workers stay, memory is pinned, copies do not wait, nothing is read back from the
device, and the loader never comes to the end of a pass. Network, loss, labeler, optimizer and moving average are ours,
without our kernels and the captured graph.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.transforms import v2

from percentmatch.methods import Method
from percentmatch.models import Classifier, build_classifier
from percentmatch.records import Batch
from percentmatch.settings.config import Config
from percentmatch.settings.views import View
from percentmatch.training.optim import Ema, build_optimizer

Views = tuple[Tensor, Tensor, Tensor, Tensor]  # of labeled images, their targets, weak and strong views of others
ENDLESS = 1 << 40  # images


class Files(Dataset[Views]):
    """A labeled image and its targets, and two views of an unlabeled one."""

    def __init__(
        self, config: Config, model: Classifier, labeled: list[Path], targets: Tensor, unlabeled: list[Path]
    ) -> None:
        self.labeled, self.targets, self.unlabeled = labeled, targets, unlabeled
        self.view, self.weak, self.strong = (
            pillow_view(view, size=config.image_size, mean=model.mean, std=model.std)
            for view in (config.labeled_view, config.weak_view, config.strong_view)
        )

    def __len__(self) -> int:
        return len(self.unlabeled)

    def __getitem__(self, index: int) -> Views:
        other = index % len(self.labeled)
        image = _open(self.unlabeled[index])
        return self.view(_open(self.labeled[other])), self.targets[other], self.weak(image), self.strong(image)


def pillow_view(view: View, *, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> v2.Compose:
    """torchvision's form of a view without a crop: an image in, a normalised tensor (3, size, size) out."""
    steps = [
        v2.Resize((size, size)),
        v2.RandomHorizontalFlip(0.5 if view.flip else 0.0),
        v2.RandAugment(view.ops),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(list(mean), list(std)),
    ]
    if view.cutout_ratio:
        steps.append(v2.RandomErasing(1.0, (0.0, view.cutout_ratio**2), (1.0, 1.0)))
    return v2.Compose(steps)


def _open(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def load(files: Files, batch: int, workers: int, device: torch.device) -> Iterator[Views]:
    """Batches without end, made by so many processes."""
    return iter(
        DataLoader(
            files,
            batch,
            sampler=RandomSampler(files, replacement=True, num_samples=ENDLESS),
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=True,
        )
    )


class Conventional:
    """Model, optimizer and moving average of such a loop."""

    def __init__(self, config: Config, method: Method, num_classes: int, device: torch.device) -> None:
        self.method, self.device = method.to(device), device
        size, head = config.image_size, config.head
        model = build_classifier(
            config.backbone, num_classes=num_classes, head=head, image_size=size, dropout=config.dropout
        )
        self.model = model.to(device).to(memory_format=torch.channels_last)
        self.ema = Ema(self.model, config.ema_decay)
        self.optimizer = build_optimizer(self.model, config, device)
        self.step_number = torch.zeros((), dtype=torch.int64, device=device)
        self.ema_weight = torch.tensor(1 - config.ema_decay, device=device)

    def send(self, views: Views) -> Views:
        """To the device, without waiting; images with their channels last."""
        images, targets, weak, strong = (tensor.to(self.device, non_blocking=True) for tensor in views)
        images, weak, strong = (
            tensor.contiguous(memory_format=torch.channels_last) for tensor in (images, weak, strong)
        )
        return images, targets, weak, strong

    def step(self, views: Views) -> None:
        images, targets, weak, strong = self.send(views)
        known = torch.ones_like(targets)
        batch = Batch(images, targets, known, self.step_number, 0, weak=weak, strong=strong)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = self.method(self.model, batch, self.ema.model)
        loss.total.backward()
        self.optimizer.step()
        self.ema.update(self.model, self.ema_weight)
