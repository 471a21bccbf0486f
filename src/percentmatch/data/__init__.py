"""Images in: decoded pools with their labels, and the split of a pool."""

from dataclasses import dataclass
from functools import lru_cache

from percentmatch.config import Config
from percentmatch.data.coco import read_coco
from percentmatch.data.folder import unlabeled_manifest
from percentmatch.data.images import Images
from percentmatch.data.load import load_images
from percentmatch.data.manifest import Manifest, join
from percentmatch.data.split import Split, make_split
from percentmatch.data.stats import describe
from percentmatch.data.table import read_table
from percentmatch.data.voc import read_voc
from percentmatch.errors import UserError
from percentmatch.records import Task

__all__ = [
    "Data",
    "Images",
    "Manifest",
    "Split",
    "describe",
    "join",
    "load_data",
    "load_images",
    "make_split",
    "read_coco",
    "read_table",
    "read_voc",
    "unlabeled_manifest",
]

SCENES_SEED = 2022  # the scenes are one fixed data set; a run's seeds choose labels and training, not pictures
FIRST_TEST_SCENE = 1_000_000  # pools begin at 0, and hold at most as many, so none holds a test scene


@dataclass(frozen=True)
class Data:
    """The images a run may learn from, and those it is tested on."""

    pool: Images
    test: Images

    def __post_init__(self) -> None:
        if self.pool.class_names != self.test.class_names:
            raise UserError("pool and test must have the same classes in the same order")
        shared = set(self.pool.ids) & set(self.test.ids)
        if shared:
            raise UserError(f"image '{min(shared)}' is both in the pool and in the test set; take it out of one")


def load_data(config: Config) -> Data:
    """The data a config names."""
    if config.data == "custom":
        raise UserError(
            "this run's data was given in Python; give it again: train(..., data=...), score_run(..., data=...)"
        )
    return _scenes(config.scenes_pool, config.scenes_test, config.image_size, config.task)


@lru_cache(maxsize=1)
def _scenes(num_pool: int, num_test: int, size: int, task: Task) -> Data:
    from percentmatch.data.scenes import draw_scenes

    test = draw_scenes(num_test, size=size, seed=SCENES_SEED, task=task, first=FIRST_TEST_SCENE)
    pool = draw_scenes(num_pool, size=size, seed=SCENES_SEED, task=task)
    return Data(pool, test)
