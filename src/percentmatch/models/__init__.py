"""Backbones with an ML-Decoder or a linear head."""

from percentmatch.models.classifier import Classifier, LinearHead, build_classifier, to_tokens
from percentmatch.models.ml_decoder import MLDecoder
from percentmatch.models.modes import dropout_on, evaluating
from percentmatch.models.quick import quicken
from percentmatch.models.saved import Card, classifier_bytes, load_classifier

__all__ = [
    "Card",
    "Classifier",
    "LinearHead",
    "MLDecoder",
    "build_classifier",
    "classifier_bytes",
    "dropout_on",
    "evaluating",
    "load_classifier",
    "quicken",
    "to_tokens",
]
