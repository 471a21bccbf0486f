"""Images in: manifests and their readers, decoding and its cache, decoded pools with their labels, and their split."""

# ruff: noqa: F401  the imports are what this package offers

from percentmatch.data.checks.check import check_data
from percentmatch.data.manifest import Manifest, describe, join
from percentmatch.data.pixels.images import Images, load_images
from percentmatch.data.readers.detect import detected, read_labels
from percentmatch.data.readers.folder import unlabeled_manifest
from percentmatch.data.readers.table import read_table
from percentmatch.data.readers.voc import read_voc
from percentmatch.data.shards.index import open_shards
from percentmatch.data.shards.stream import Stream
from percentmatch.data.shards.write import write_shards
from percentmatch.data.source import Data, Source, check_classes, load_data, open_data, read_manifest
from percentmatch.data.split import Split, count_split, make_split, split_data, split_manifest
