"""A trained model for other programs: one ONNX file, or a folder for Python and the Hugging Face Hub."""

import html
import json
import logging
import os
import re
import warnings
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor
from torch.nn import functional as F

from percentmatch.console.tables import percent
from percentmatch.errors import UserError
from percentmatch.files import cannot_write, new_part, write_atomic, write_json
from percentmatch.models import Card, Classifier, classifier_bytes, classifier_of, read_card
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.calibration import FEW, probabilities_of, thresholds_of
from percentmatch.scoring.predictions import logits
from percentmatch.scoring.table import final_scores
from percentmatch.use.predict import Predictor

TOLERANCE = 1e-4  # between the probabilities of onnxruntime and torch
MOST_BYTES = 2**31 - 2**20  # one ONNX file holds 2 GiB


class ImageClassifier(Classifier, PyTorchModelHubMixin, library_name="percentmatch", tags=["image-classification"]):
    """A classifier with all that is done to its input and output.

    RGB squares (n, s, s, 3) uint8, s the card's decode_size -> calibrated probabilities (n, c). The keyword arguments
    are the fields of a `Card`, as config.json holds them.
    """

    shrink: Tensor  # (size, s)
    colour: Tensor  # (2, 3, 1, 1) mean and std
    affine: Tensor  # (2, c) scale and shift of the logits

    def __init__(self, **fields: Any) -> None:
        card = read_card(fields)
        built = classifier_of(card)
        super().__init__(built.backbone, built.head)
        self.card = card
        unit, shape = torch.eye(card.decode_size)[None, None], (card.image_size, card.decode_size)  # (1, 1, s, s)
        shrink = F.interpolate(unit, shape, mode="bilinear", antialias=True)[0, 0]
        affine = [card.decisions.scale, card.decisions.shift] if card.decisions else [[1.0], [0.0]]
        self.register_buffer("shrink", shrink, persistent=False)  # the file holds the weights only
        self.register_buffer("colour", torch.tensor([card.mean, card.std])[:, :, None, None], persistent=False)
        self.register_buffer("affine", torch.tensor(affine), persistent=False)
        self.eval()  # huggingface-hub 1.0 leaves the model that `from_pretrained` makes in its first mode

    def forward(self, images: Tensor) -> Tensor:
        """As `augment.resize`, but by matrices: runtimes agree on products, and differ in how they resize."""
        views = images.permute(0, 3, 1, 2).float()
        if self.card.image_size != self.card.decode_size:
            views = (self.shrink @ (views @ self.shrink.T)).round()
        scale, shift = self.affine
        scores = super().forward((views / 255 - self.colour[0]) / self.colour[1]).float() * scale + shift
        return scores.softmax(dim=1) if self.card.task == "single-label" else scores.sigmoid()

    def _save_pretrained(self, save_directory: Path) -> None:
        """With the card in the file, so that `Predictor` reads what is saved or pushed."""
        write_atomic(save_directory / "model.safetensors", classifier_bytes(self, self.card))


def export(model: str | Path, out: Path) -> list[str]:
    """Write the model of a run folder or file to `out`, a file that ends in .onnx or a new folder; says what it did."""
    predictor = Predictor(model, "cpu")
    if out.suffix.lower() != ".onnx":
        folder = RunFolder(Path(model))
        write_folder(predictor, out, folder.read_metrics() if folder.metrics.exists() else {})
        return [f"folder  {out}  (model.safetensors, config.json, README.md)"]
    if out.exists() and not out.is_file():
        raise UserError(f"--out {out} is no file; name a new one")
    content, difference = onnx_bytes(predictor)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(out, error) from error
    write_atomic(out, content)
    return [f"onnx  {out}  {len(content) / 1e6:.1f} MB", f"onnxruntime and torch agree within {difference:.0e}"]


def with_preprocessing(predictor: Predictor) -> ImageClassifier:
    """The predictor's model with all that is done to its input and output."""
    model = ImageClassifier(**asdict(predictor.card))
    model.load_state_dict(predictor.network.state_dict())
    return model


def onnx_bytes(predictor: Predictor) -> tuple[bytes, float]:
    """The ONNX file, and how far onnxruntime's probabilities are from torch's; an error if they do not agree."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError as error:
        how = 'run pip install "percentmatch[export]"'
        raise UserError(f"an ONNX file needs {error.name}, which is not installed; {how}") from None
    card, model = predictor.card, with_preprocessing(predictor)
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > MOST_BYTES:
        raise UserError(f"the {size / 2**30:.1f} GiB of {card.backbone} do not fit into an ONNX file; export a folder")
    pixels = _examples(card.decode_size)
    logging.getLogger("onnxscript").setLevel(logging.ERROR)  # it warns of what it does not simplify
    try:
        names: Any = {"input_names": ["pixels"], "output_names": ["probabilities"]}
        names["dynamic_shapes"] = ({0: torch.export.Dim("n")},)
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            program: Any = torch.onnx.export(model, (pixels,), dynamo=True, verbose=False, external_data=False, **names)
    except Exception as error:  # torch's exporter refuses a model in many ways
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"torch cannot export {card.backbone} as ONNX ({reason})") from error
    proto = program.model_proto  # a new one each time it is read
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in onnx_facts(card).items()})
    content = proto.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        found: list[Any] = [session.run(None, {"pixels": batch.numpy()})[0] for batch in (pixels, pixels[:1])]
    except Exception as error:  # onnxruntime's errors have no common class
        reason = f"{error}\n".splitlines()[0]
        raise UserError(f"onnxruntime cannot run the exported {card.backbone} ({reason}); export a folder") from error
    wanted = probabilities_of(logits(predictor.network, pixels.permute(0, 3, 1, 2), card, predictor.device), card)
    difference = max(float((torch.as_tensor(table) - wanted[: len(table)]).abs().max()) for table in found)
    if not difference <= TOLERANCE:
        what = f"onnxruntime's probabilities differ from torch's by {difference:.1e}, more than {TOLERANCE:.0e}"
        raise UserError(f"{what}; nothing is written: export a folder, or try another version of onnxruntime")
    return content, difference


def onnx_facts(card: Card) -> dict[str, Any]:
    """The metadata of an ONNX file, each value as JSON."""
    names = ("class_names", "task", "decode_size", "image_size", "frame", "mean", "std", "backbone", "version")
    return {**{name: getattr(card, name) for name in names}, "thresholds": thresholds_of(card)}


def _examples(side: int) -> Tensor:
    """Noise, noise in large squares, and gradients: (3, side, side, 3) uint8."""
    noise = torch.randint(256, (3, 3, side, side), generator=torch.Generator().manual_seed(0)).float()
    squares = F.interpolate(noise[1:2, :, :4, :4], (side, side), mode="nearest")
    gradients = F.interpolate(noise[2:, :, :2, :2], (side, side), mode="bilinear")
    return torch.cat([noise[:1], squares, gradients]).byte().permute(0, 2, 3, 1).contiguous()


def write_folder(predictor: Predictor, out: Path, metrics: dict[str, Any]) -> None:
    """A folder that `Predictor` and `ImageClassifier.from_pretrained` load, moved into place when it is complete."""
    if out.exists() and (not out.name or not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out} is there already; name a new folder, or a file that ends in .onnx")
    try:
        with new_part(out) as new:
            new.mkdir(parents=True)
            write_atomic(new / "model.safetensors", classifier_bytes(predictor.network, predictor.card))
            write_json(new / "config.json", asdict(predictor.card))
            write_atomic(new / "README.md", model_card(predictor.card, metrics).encode())
            os.replace(new, out)
    except OSError as error:
        raise cannot_write(out, error) from error


def model_card(card: Card, metrics: dict[str, Any]) -> str:
    """README.md of an exported folder."""

    def cell(text: str) -> str:
        return re.sub(r"[|\[\]`]", lambda found: f"&#{ord(found[0])};", html.escape(" ".join(text.split())))

    thresholds = thresholds_of(card)
    if thresholds is None:
        classes = [f"- {cell(name)}" for name in card.class_names]
    else:
        rows = [f"| {cell(name)} | {t:.4f} |" for name, t in zip(card.class_names, thresholds, strict=True)]
        classes = ["| class | threshold |", "|---|---|", *rows]
    scores = [
        f"- {subset} mAP {percent(table.means['mAP'])} on {table.num_images} images"
        for subset, table in reversed(final_scores(metrics).items())
        if table.means["mAP"] is not None
    ]
    errors = metrics.get("calibration")
    if errors and card.calibrated:
        scores.append(f"- calibration error (ECE) {errors['ece_before']:.4f} raw, {errors['ece_after']:.4f} calibrated")
    rough = [
        name for key in ("few_positives", "without_positives") for name in metrics.get("decisions", {}).get(key, ())
    ]
    if rough:
        number = f"{len(rough)} of {len(card.class_names)} classes"
        scores.append(f"- thresholds are rough: {number} had fewer than {FEW} positives among the validation images")
    rule = "the most probable class is chosen"
    template = (files("percentmatch.use") / "model_card.md").read_text(encoding="utf-8")
    return template.format(
        card=card,
        backbone=cell(card.backbone),
        version=cell(card.version),
        number=len(card.class_names),
        origin="calibrated on labeled images" if card.calibrated else "those of the network, not calibrated",
        decision=rule if thresholds is None else "a class is chosen from its threshold on",
        scores="\n".join(["", "## Scores", "", *scores, ""]) if scores else "",
        classes="\n".join(classes),
        area="its central square" if card.frame == "center" else "all of it",
    )
