"""Settings of a pre-training run: typed, complete, and strict about names."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch

from simplicia import bottlenecks, encoders, methods, settings
from simplicia.data.augmentation import ViewSettings
from simplicia.errors import UserError, build_errors, reason, unknown
from simplicia.files import write_text
from simplicia.settings import Formerly, Range, as_dict, from_dict
from simplicia.train import checkpoint

LARGEST_FILE = 100_000  # characters of a recipe.yaml
MOST_BRACKETS = 100  # [ and { in one of its lines
Count = Range(low=0)
Side = Range(low=0, high=8192)  # pixels
Share = Range(low=0, below=1)


@dataclass(frozen=True)
class SemSettings:
    """The simplicial embedding."""

    simplices: Annotated[int, "L (0: chosen to fit the encoder)"] = 5000
    vertices: Annotated[int, "V"] = 13
    temperature: Annotated[float, "tau"] = 1.0
    second_temperature: Annotated[float | None, "tau', of the target network or of view 2 (none: tau)"] = None
    norm: Annotated[
        Literal["batch", "layer", "none"], "normalisation of the embedder's output, before the softmax"
    ] = "batch"
    embedder: Annotated[
        Literal["linear", "identity", "mlp"], "layer from the encoder's output to L*V numbers"
    ] = "linear"
    blocks: Annotated[int, "diagonal blocks of the embedder and of the projector's first layer"] = 1
    centred: Annotated[bool, "hand the projector p - 1/V (false: p, as in the paper)"] = True
    entropy_weight: Annotated[
        float, "weight of each sample's entropy minus that of the batch's mean, in the loss", Range(low=0)
    ] = 0.0


@dataclass(frozen=True)
class VqSettings:
    """The vector-quantised bottleneck; sem.simplices codebooks of sem.vertices codes."""

    dimensions: Annotated[int, "dimensions of each code", Range(low=1)] = 32
    commitment: Annotated[float, "weight of the commitment loss", Count] = 0.01
    decay: Annotated[float, "decay of the codes' moving averages", Share] = 0.99
    dead_code_threshold: Annotated[
        float, "share of the average use below which a code is replaced", Share, Formerly("revive")
    ] = 0.1


@dataclass(frozen=True)
class OptimSettings:
    """The optimiser and its learning rate."""

    name: Annotated[Literal["lars", "sgd"], "optimiser"] = "lars"
    lr: Annotated[float, "learning rate at a batch of 256, scaled with the batch", Count] = 1.0
    weight_decay: Annotated[float, "L2 penalty on the weights", Count] = 1e-5
    embedder_weight_decay: Annotated[
        float | None, "L2 penalty on the bottleneck's weights (none: weight_decay)", Count
    ] = None
    momentum: Annotated[float, "momentum of the steps", Share] = 0.9
    eta: Annotated[float, "LARS's trust coefficient", Count] = 0.02
    exclude_1d: Annotated[bool, "no weight decay and no trust ratio for biases and norms"] = True
    warmup_epochs: Annotated[float, "epochs of linear warm-up", Count] = 10.0
    warmup_lr: Annotated[float, "learning rate at the start of the warm-up", Count] = 3e-5
    min_lr: Annotated[float, "learning rate at the end of the cosine", Count] = 0.0
    lr_per_epoch: Annotated[
        bool, "change the rate once per epoch, as the paper does (false: every step)", Formerly("per_epoch")
    ] = False
    clip: Annotated[float, "largest norm of the gradient (0: no clipping)", Count] = 0.0
    momentum_bits: Annotated[Literal["32", "16"], "precision in which momentum is kept"] = "32"
    reduce_bits: Annotated[
        Literal["32", "16"], "precision in which processes average the gradients of large matrices"
    ] = "32"


@dataclass(frozen=True)
class Recipe:
    """Everything a run is made of; written to its folder as ``recipe.yaml``."""

    name: str = "custom"
    data: Annotated[str, "name of a data set, or a folder of images"] = "shapes"
    data_dir: Annotated[str | None, "folder of the standard data sets (none: SIMPLICIA_DATA)"] = None
    image_size: Annotated[int, "side of the images that the encoder sees (0: from the images)", Side] = 32
    view_size: Annotated[
        int, "side of the training views; smaller ones train faster (0: image_size)", Side
    ] = 0
    decode_size: Annotated[
        int, "side to which image files are decoded (0: image_size)", Side, Formerly("stored_size")
    ] = 0
    keep_aspect: Annotated[
        bool, "cut views from uncropped images, if they are files (false: centre squares)", Formerly("whole")
    ] = True
    method: Annotated[str, "self-supervised method; simplicia methods lists them"] = "byol"
    bottleneck: Annotated[str, "sem, none, embed, gumbel, vq or vq-shared"] = "sem"
    encoder: Annotated[str, 'tiny, resnet18, any timm model ("auto": from images and device)'] = "resnet18"
    stem: Annotated[
        Literal["small", "imagenet", "auto"], 'first layers of a ResNet ("auto": from image_size)'
    ] = "small"
    stem_padding: Annotated[int, "padding of the small stem (the authors' code: 2)", Range(0, 32)] = 1
    encoder_weights: Annotated[
        str | None,
        'first weights of the encoder: a .safetensors file, or "pretrained" for timm\'s from the hub',
    ] = None
    freeze: Annotated[
        Literal["none", "encoder"], "parts that do not learn; a frozen encoder's features are computed once"
    ] = "none"
    frozen_views: Annotated[
        int, "random views of each image whose features a frozen encoder computes", Range(2, 1024)
    ] = 4
    epochs: Annotated[int, "passes over the images", Range(low=1)] = 1000
    batch_size: Annotated[int, "images per step over all processes (0: from their number)", Count] = 256
    process_batch_size: Annotated[
        int,
        "images in the networks of each process at a time (0: its share of the batch)",
        Count,
        Formerly("micro_batch_size"),
        Formerly("micro_batch"),
    ] = 0
    precision: Annotated[Literal["auto", "32", "bf16"], '"auto": bf16 on a GPU, 32 bits elsewhere'] = "auto"
    seed: Annotated[int, "seed of weights, order and views", Range(low=-(2**63), below=2**63)] = 0
    init: Annotated[str | None, "folder of a run whose weights training begins with"] = None
    holdout: Annotated[float, "share of each class kept for online probes (0: they use test)", Share] = 0.0
    sem: SemSettings = field(default_factory=SemSettings)
    vq: VqSettings = field(default_factory=VqSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    views: ViewSettings = field(default_factory=ViewSettings)
    options: Annotated[dict[str, Any], 'options of the method, such as {"momentum": 0.99}'] = field(
        default_factory=dict
    )
    data_device: Annotated[
        Literal["auto", "device", "host", "stream"],
        'where images are kept ("auto": the device, if half its memory suffices; "stream": on disk)',
        Formerly("images_on"),
    ] = "auto"
    data_threads: Annotated[
        int,
        "threads, on Linux above 4 processes, that decode streamed images (0: one per CPU core)",
        Range(0, 1024),
    ] = 0
    max_unreadable: Annotated[
        float, "share of streamed images that may be unreadable before training stops", Range(0, 1)
    ] = 0.01
    log_every: Annotated[int, "steps between lines of the log", Range(low=1)] = 50
    checkpoint_minutes: Annotated[float, "minutes between checkpoints", Range(above=0)] = 2.0
    online_every: Annotated[int, "epochs between online probes (0: never; needs labels)", Count] = 0
    online_temperatures: Annotated[
        tuple[float, ...], "further temperatures of SEM for online probes", Count
    ] = ()
    loggers: Annotated[tuple[Literal["tensorboard", "wandb"], ...], "further loggers"] = ()

    # settings of how a run is watched, and where images lie: they may change when it is resumed
    MAY_CHANGE: ClassVar = (
        "data_dir",
        "data_device",
        "data_threads",
        "max_unreadable",
        "log_every",
        "checkpoint_minutes",
        "online_every",
        "online_temperatures",
        "loggers",
    )

    @staticmethod
    def spelled(values: Mapping[str, Any], method: str) -> dict[str, Any]:
        """Settings with the method's options under "options", where users and files write its name."""
        spelled: dict[str, Any] = {}
        for path, value in values.items():
            head, dot, rest = str(path).partition(".")
            if head in methods.names():
                if head != method:
                    raise UserError(f"{path} is an option of {head}, and the method is {method}")
                path = f"options{dot}{rest}"
            both = isinstance(value, dict) and isinstance(spelled.get(path), dict)
            spelled[path] = {**spelled[path], **value} if both else value
        return spelled

    def checked(self) -> "Recipe":
        """The recipe with its method's options typed; a UserError for settings that no run can have."""
        settings.check(self)
        for name in ("image_size", "decode_size", "view_size"):
            if getattr(self, name) == 1:
                raise UserError(f"{name} is 1; views have at least 2 pixels on a side")
        for name in ("batch_size", "process_batch_size"):
            if getattr(self, name) == 1:
                raise UserError(f"{name} is 1; BatchNorm needs at least 2 images")
        if 0 < self.process_batch_size < self.batch_size and self.batch_size % self.process_batch_size:
            raise UserError(
                f"process_batch_size is {self.process_batch_size}; batch_size, {self.batch_size}, must be a "
                "multiple of it"
            )
        if self.decode_size and not 0 < self.image_size <= self.decode_size:
            raise UserError(
                f"decode_size is {self.decode_size} and image_size {self.image_size}; views are cut from "
                "decoded images, so give an image_size that is not larger"
            )
        if self.encoder != "auto":
            encoders.check(self.encoder)
        if self.bottleneck not in bottlenecks.names():
            raise unknown("bottleneck", self.bottleneck, bottlenecks.names())
        self._check_temperatures()
        try:
            self.views.validate()
        except ValueError as error:
            raise UserError(f"views: {error}") from error
        if len(self.views.blur) != 2:
            raise UserError(f"views.blur is {self.views.blur}; a method takes 2 views, so give 2 entries")
        return dataclasses.replace(self, options=methods.converted(self.method, self.options))

    def _check_temperatures(self) -> None:
        for name in ("temperature", "second_temperature"):
            value = getattr(self.sem, name)
            if value is not None and not 0 <= value < math.inf:
                raise UserError(f"sem.{name} is {value}; it must be 0 (one-hot) or positive, and finite")
            if self.bottleneck == "gumbel" and value == 0:
                raise UserError(f"sem.{name} is 0; Gumbel samples need a positive one, such as 2")
        if self.bottleneck == "sem" and self.sem.temperature == 0:
            raise UserError(
                "sem.temperature is 0; one-hot codes pass no gradient to the encoder, so training needs a "
                "positive one, such as 1; use 0 when you measure"
            )
        if self.bottleneck != "sem" and self.sem.entropy_weight:
            raise UserError(
                f"sem.entropy_weight is {self.sem.entropy_weight}, but bottleneck {self.bottleneck!r} has no "
                "simplices; use it with bottleneck sem"
            )
        if self.bottleneck == "sem" and self.sem.vertices == 1:
            raise UserError("sem.vertices is 1; a simplex of one vertex is always 1, so give 2 or more")

    @property
    def stream(self) -> bool | None:
        """Whether images are decoded for each step (None: if they do not fit into memory)."""
        return {"auto": None, "stream": True}.get(self.data_device, False)

    @property
    def actual_decode_size(self) -> int:
        """The side to which image files are decoded (0: chosen from the images)."""
        return self.decode_size or self.image_size

    @property
    def actual_view_size(self) -> int:
        """The side of the training views (0: chosen from the images)."""
        return self.view_size or self.image_size

    def accumulation_steps(self, processes: int = 1) -> int:
        """How many micro-batches make a batch; 1 while its size is open."""
        share = self.batch_size // processes
        return share // self.process_batch_size if 0 < self.process_batch_size < share else 1

    def micro_batch_size(self, processes: int = 1) -> int:
        """How many images are in the networks at a time, over all processes."""
        return self.batch_size // self.accumulation_steps(processes)

    def build(self, encoder: torch.nn.Module | None = None) -> methods.Method:
        """The method with its encoder and bottleneck, freshly initialised, or with the ``encoder`` given."""
        has_temperature = "temperature" in bottlenecks.options(self.bottleneck)
        with build_errors("this model"):
            return methods.create(
                self.method,
                *self.trunk(encoder),
                self.sem.second_temperature if has_temperature else None,
                self.sem.entropy_weight,
                self.sem.centred,
                **methods.converted(self.method, self.options),
            )

    def trunk(self, given: torch.nn.Module | None = None) -> tuple[Any, Any]:
        """The encoder and the bottleneck, without the method's projector."""
        encoder = self._encoder(given)
        values = dataclasses.asdict(self.sem) | dataclasses.asdict(self.vq)
        values["norm"] = None if self.sem.norm == "none" else self.sem.norm
        options = {name: values[name] for name in bottlenecks.options(self.bottleneck) if name in values}
        return encoder, bottlenecks.create(self.bottleneck, encoder.out_features, **options)

    def try_encoder(self, encoder: Any) -> None:
        """A UserError unless an encoder takes views of this size, and gives as many features as it says."""
        if self.encoder in encoders.names():
            return
        name = f"encoder {self.encoder!r}"
        width = encoders.width_of(encoder, self.actual_view_size, name, "views")
        if width != encoder.out_features:
            raise UserError(f"{name} gives {width} features, not {encoder.out_features}")

    def _encoder(self, given: torch.nn.Module | None) -> Any:
        if self.encoder == encoders.GIVEN:
            if given is None:
                raise UserError("the encoder came from Python; simplicia.load(path, encoder=module) takes it")
            return encoders.wrap(given, self.image_size)
        if self.encoder in encoders.names():
            return encoders.create(self.encoder, self.stem, self.stem_padding)  # type: ignore[arg-type]
        built, fixed_size = encoders.create_sized(self.encoder, self.image_size)
        if fixed_size and self.actual_view_size != self.image_size:
            raise UserError(
                f"view_size is {self.view_size}, but encoder {self.encoder!r} takes one size of images; "
                f"leave view_size out, or give it image_size, {self.image_size}"
            )
        return built


def write_yaml(recipe: Recipe, path: Path) -> None:
    """Write a recipe, all of it or nothing."""
    import yaml

    values = {recipe.method if name == "options" else name: value for name, value in as_dict(recipe).items()}
    write_text(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def read_yaml(path: Path) -> Recipe:
    """A recipe from its file, strictly."""
    import yaml

    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ValueError(f"it has more than {LARGEST_FILE} characters")
        # PyYAML takes a millisecond for each bracket of a line with a thousand
        if any(line.count("[") + line.count("{") > MOST_BRACKETS for line in text.splitlines()):
            raise ValueError(f"a line has more than {MOST_BRACKETS} brackets")
        # a few nested aliases stand for more values than memory holds
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("it has aliases (*name); write the values out")
        values = yaml.safe_load(text)
    except FileNotFoundError as error:
        raise UserError(f"there is no file {str(path)!r}") from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as a recipe: {reason(error)}") from error
    try:
        return from_dict(_converted(values, path.parent), Recipe).checked()
    except ValueError as error:  # a UserError, or an integer with too many digits to print
        raise UserError(f"{path}: {error}") from error


def _converted(values: Any, folder: Path) -> Any:
    """The values with the micro-batch of one process; older files have that of all processes."""
    for name in ("micro_batch_size", "micro_batch"):
        if isinstance(values, dict) and name in values:
            size, processes = values[name], checkpoint.state_of(folder).get("processes", 1)
            if all(isinstance(number, int) and number > 0 for number in (size, processes)):
                values = {**values, name: max(size // processes, 2)}
    return values
