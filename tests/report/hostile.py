"""Names of classes as hostile as names can be, and the settings of a run of a second."""

from percentmatch.settings.config import Config

CLASSES = ("disc", "</script><script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "a & b <b>", "Ü\u2028é", "e")
CONFIG = Config(
    validation=30,
    labeled=40,
    image_size=32,
    backbone="test_resnet",
    head="linear",
    labeled_batch=8,
    total_steps=6,
    lr=1e-3,
    log_every=2,
    eval_every=3,
    save_every=6,
    method="percentmatch",
    options={"warmup_steps": 2, "gap_start": 0.0, "gap_full": 0.1, "momentum": 0.2, "upper_percentile": 0.6},
)
