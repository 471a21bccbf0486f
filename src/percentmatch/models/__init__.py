"""Backbones under a head."""

from percentmatch.models.classifier import (
    Classifier,
    build_classifier,
    dropout_on,
    drops,
    evaluating,
    freeze_batch_norm,
    to_tokens,
)
from percentmatch.models.heads import HEADS
from percentmatch.models.heads.base import Head
from percentmatch.models.heads.linear import LinearHead
from percentmatch.models.heads.ml_decoder import MLDecoder
from percentmatch.models.kernels.quick import quicken, spare_search
from percentmatch.models.saved import Card, Decisions, classifier_bytes, classifier_of, load_classifier, read_card

__all__ = ["HEADS", "Card", "Classifier", "Decisions", "Head", "LinearHead", "MLDecoder"]
__all__ += ["build_classifier", "classifier_bytes", "classifier_of", "dropout_on", "drops", "evaluating"]
__all__ += ["freeze_batch_norm", "load_classifier", "quicken", "read_card", "spare_search", "to_tokens"]
