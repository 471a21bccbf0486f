"""After the last step: the head alone learns from the labeled images that were held out."""

import copy
from itertools import chain

import torch

from percentmatch.augment import mix
from percentmatch.losses import mean_over_images
from percentmatch.models import Classifier, evaluating
from percentmatch.scoring.predictions import BATCH
from percentmatch.training.optim import build_optimizer, lr_at, set_lr
from percentmatch.training.run import Run

ORDER = 1_000_037  # random stream of the order of images


def fit_heads(run: Run) -> None:
    """Fit the heads of both models that are scored, if the method asks for it. It starts anew in a resumed run."""
    if epochs := run.method.head_epochs:
        for network in (run.model, run.ema.model):
            assert isinstance(network, Classifier)
            with torch.compiler.set_stance("force_eager"):
                _fit(run, network, epochs)


def _fit(run: Run, network: Classifier, epochs: int) -> None:
    """Passes in batches with the run's optimizer and a learning-rate cycle of their own; features stay as they are."""
    config, size = run.config, min(run.config.labeled_batch, len(run.held_out))
    labels = run.loader.labels
    targets, known = (table[run.held_out].float().to(run.device) for table in (labels.targets, labels.known))
    head = copy.deepcopy(run.model.head)  # that of the EMA is frozen
    head.load_state_dict(network.head.state_dict())
    head.eval()
    with torch.no_grad(), evaluating(network):
        features = torch.cat([network.read(images) for images in run.loader.plain_images(run.held_out, BATCH)])
    optimizer, steps = build_optimizer(head, config, run.device), epochs * -(-len(features) // size)
    generator = torch.Generator().manual_seed(mix(config.seed, ORDER))
    orders = (torch.randperm(len(features), generator=generator).split(size) for _ in range(epochs))
    for step, chosen in enumerate(chain.from_iterable(orders)):
        rows = chosen.to(run.device)
        rate = lr_at(step, max_lr=config.lr, total_steps=steps, warmup_ratio=config.lr_warmup_ratio)
        set_lr(optimizer, torch.tensor(rate, device=run.device))
        loss = mean_over_images(run.method.pair_loss(head(features[rows]), targets[rows]), known[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.head.load_state_dict(head.state_dict())
