"""Backbones with an ML-Decoder or a linear head."""

from percentmatch.models.classifier import Classifier, LinearHead, build_classifier, to_tokens
from percentmatch.models.kernels.quick import quicken, spare_search
from percentmatch.models.ml_decoder import MLDecoder
from percentmatch.models.modes import dropout_on, drops, evaluating
from percentmatch.models.saved import Card, Decisions, classifier_bytes, load_classifier, read_card

__all__ = [
    "Card",
    "Classifier",
    "Decisions",
    "LinearHead",
    "MLDecoder",
    "build_classifier",
    "classifier_bytes",
    "dropout_on",
    "drops",
    "evaluating",
    "load_classifier",
    "quicken",
    "read_card",
    "spare_search",
    "to_tokens",
]
