"""Settings of a pre-training run: typed, complete, and strict about names."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch

from simplicia import bottlenecks, encoders, methods
from simplicia.data.augmentation import ViewSettings
from simplicia.errors import UserError, unknown
from simplicia.files import atomic_write
from simplicia.methods.base import Network
from simplicia.settings import Formerly, as_dict, check_seed, from_dict


@dataclass
class SemSettings:
    """The simplicial embedding."""

    simplices: int = 5000  # L (0: chosen to fit the encoder)
    vertices: int = 13  # V
    temperature: float = 1.0  # tau
    second_temperature: float | None = None  # tau', of the target network or of view 2 (None: tau)
    norm: Literal["batch", "layer", "none"] = "batch"  # of the embedder's output, before the softmax
    embedder: Literal["linear", "identity", "mlp"] = "linear"  # from the encoder's output to L*V numbers
    blocks: int = 1  # diagonal blocks of the embedder and of the projector's first layer
    centred: bool = True  # the projector is handed p - 1/V (False: p, as in the paper)


@dataclass
class VqSettings:
    """The vector-quantised bottleneck, whose codebooks and codes are sem's simplices and vertices."""

    dimensions: int = 32  # of each code
    commitment: float = 0.25  # weight of the commitment loss
    decay: float = 0.99  # of the codes' moving averages
    # share of the average use below which a code is replaced
    dead_code_threshold: Annotated[float, Formerly("revive")] = 0.1


@dataclass
class OptimSettings:
    """The optimiser and its learning rate."""

    name: Literal["lars", "sgd"] = "lars"  # which optimiser
    lr: float = 1.0  # at a batch of 256, scaled with the batch
    weight_decay: float = 1e-5  # L2 penalty on the weights
    embedder_weight_decay: float | None = None  # of the bottleneck's weights (None: weight_decay)
    momentum: float = 0.9  # of the steps
    eta: float = 0.02  # LARS's trust coefficient
    exclude_1d: bool = True  # biases and norms get neither weight decay nor trust ratio
    warmup_epochs: float = 10.0  # during which the rate rises in a line
    warmup_lr: float = 3e-5  # where the warm-up starts
    min_lr: float = 0.0  # where the cosine ends
    per_epoch: bool = False  # the rate changes once per epoch, as the paper's does (False: at every step)
    clip: float = 0.0  # largest norm of the gradient (0: no clipping)
    momentum_bits: Literal["32", "16"] = "32"  # precision in which momentum is kept


@dataclass
class Recipe:
    """Everything a run is made of; written to its folder as ``recipe.yaml``."""

    name: str = "custom"
    data: str = "shapes"  # a data set's name or a folder of images
    data_dir: str | None = None  # where standard data sets lie (None: SIMPLICIA_DATA)
    image_size: int = 32  # side of the square images that the encoder is given (0: chosen from the images)
    view_size: int = 0  # side of the views in training; smaller ones train faster (0: image_size)
    stored_size: int = 0  # side at which files of images are kept, for views to be cut from (0: image_size)
    whole: bool = True  # views are cut from whole pictures, if they are files (False: from centre squares)
    method: str = "byol"  # barlow, byol, dino, moco, simclr, swav or vicreg
    bottleneck: str = "sem"  # sem, none, embed, gumbel or vq
    encoder: str = "resnet18"  # tiny, resnet18, any timm model, … ("auto": by the images and the device)
    stem: Literal["small", "imagenet", "auto"] = "small"  # a ResNet's first layers ("auto": by image_size)
    stem_padding: int = 1  # of the small stem's convolution (the authors' code: 2)
    epochs: int = 1000  # passes over the images
    batch_size: int = 256  # over all processes (0: chosen from the number of images)
    micro_batch: int = 0  # images, over all processes, that are in the networks at once (0: the whole batch)
    precision: Literal["auto", "32", "bf16"] = "auto"  # ("auto": bf16 on a GPU, 32 bits elsewhere)
    seed: int = 0  # of weights, order and views
    init: str | None = None  # the folder of a run whose weights training begins with
    holdout: float = 0.0  # share of each class kept out of training, for online probes (0: they use test)
    sem: SemSettings = field(default_factory=SemSettings)
    vq: VqSettings = field(default_factory=VqSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    views: ViewSettings = field(default_factory=ViewSettings)
    options: dict[str, Any] = field(default_factory=dict)  # the method's own, such as {"momentum": 0.99}
    # how the run is watched, and where images lie; these may change when it is resumed
    images_on: Literal["auto", "device", "host"] = "auto"  # ("auto": the device, if half its memory will do)
    log_every: int = 50  # steps between lines of the log
    checkpoint_minutes: float = 2.0  # between checkpoints
    online_every: int = 0  # epochs between online probes (0: never; needs labels)
    online_temperatures: tuple[float, ...] = ()  # of SEM, for online probes besides that at its own
    loggers: tuple[str, ...] = ()  # "tensorboard", "wandb"

    WATCHING: ClassVar = (
        "data_dir",
        "images_on",
        "log_every",
        "checkpoint_minutes",
        "online_every",
        "online_temperatures",
        "loggers",
    )

    def validate(self) -> None:
        """Raise a UserError for a value no run can have."""
        for name, least in (
            ("epochs", 1),
            ("batch_size", 0),
            ("micro_batch", 0),
            ("image_size", 0),
            ("stored_size", 0),
            ("view_size", 0),
            ("log_every", 1),
            ("online_every", 0),
        ):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("image_size", "stored_size", "view_size"):
            if getattr(self, name) == 1:
                raise UserError(f"{name} is 1; views have at least 2 pixels on a side")
        if 1 in (self.batch_size, self.micro_batch):
            name = "batch_size" if self.batch_size == 1 else "micro_batch"
            raise UserError(f"{name} is 1; BatchNorm needs at least 2 images")
        _ = self.at_once  # refuses what does not divide the batch
        if self.stored_size and not 0 < self.image_size <= self.stored_size:
            raise UserError(
                f"stored_size is {self.stored_size} and image_size {self.image_size}; views are cut from "
                "what is stored, so give an image_size that is not larger"
            )
        check_seed(self.seed)
        for field_ in dataclasses.fields(self.optim):
            value = getattr(self.optim, field_.name)
            if isinstance(value, float) and not 0 <= value < math.inf:
                raise UserError(f"optim.{field_.name} is {value}; it must be a finite number, not negative")
        if not self.checkpoint_minutes > 0:
            raise UserError(f"checkpoint_minutes is {self.checkpoint_minutes}; it must be positive")
        if self.encoder != "auto":
            encoders.check(self.encoder)
        if self.bottleneck not in bottlenecks.names():
            raise unknown("bottleneck", self.bottleneck, bottlenecks.names())
        self.options = methods.converted(self.method, self.options)
        for name in ("temperature", "second_temperature"):
            value = getattr(self.sem, name)
            if value is not None and not 0 <= value < math.inf:
                raise UserError(f"sem.{name} is {value}; it must be 0 (one-hot) or positive, and finite")
            if self.bottleneck == "gumbel" and value == 0:
                raise UserError(f"sem.{name} is 0; Gumbel samples need a positive one, such as 2")
        if self.bottleneck == "sem" and self.sem.temperature == 0:
            raise UserError(
                "sem.temperature is 0; one-hot codes pass no gradient to the encoder, so training needs a "
                "positive one, such as 1; 0 is for what is measured afterwards"
            )
        if self.bottleneck == "sem" and self.sem.vertices == 1:
            raise UserError("sem.vertices is 1; a simplex of one vertex is always 1, so give 2 or more")
        if self.vq.dimensions < 1:
            raise UserError(f"vq.dimensions is {self.vq.dimensions}; it must be at least 1")
        if not 0 <= self.vq.commitment < math.inf:
            raise UserError(f"vq.commitment is {self.vq.commitment}; it must not be negative")
        for name in ("decay", "dead_code_threshold"):
            if not 0 <= getattr(self.vq, name) < 1:
                raise UserError(f"vq.{name} is {getattr(self.vq, name)}; it must be from 0 to below 1")
        for value in self.online_temperatures:
            if not 0 <= value < math.inf:
                raise UserError(f"online_temperatures has {value}; each must be 0 (one-hot) or positive")
        if not 0 <= self.holdout < 1:
            raise UserError(f"holdout is {self.holdout}; it must be 0 or a share below 1")
        if self.stem_padding < 0:
            raise UserError(f"stem_padding is {self.stem_padding}; it must not be negative")
        if self.optim.momentum >= 1:
            raise UserError(f"optim.momentum is {self.optim.momentum}; it must be below 1")
        for logger in self.loggers:
            if logger not in ("tensorboard", "wandb"):
                raise unknown("logger", logger, ["tensorboard", "wandb"])
        try:
            self.views.validate()
        except UserError as error:
            raise UserError(f"views.{error}") from None
        if len(self.views.blur) != 2:
            raise UserError(f"views.blur is {self.views.blur}; a method takes 2 views, so give 2 entries")

    @property
    def stored(self) -> int:
        """The side of the squares that files of images are decoded to (0: chosen from the images)."""
        return self.stored_size or self.image_size

    @property
    def viewed(self) -> int:
        """The side of the views in training (0: chosen from the images)."""
        return self.view_size or self.image_size

    @property
    def at_once(self) -> int:
        """How many images are in the networks at once: a micro-batch, or the whole batch."""
        if not 0 < self.micro_batch < self.batch_size:
            return self.batch_size
        if self.batch_size % self.micro_batch:
            raise UserError(
                f"micro_batch is {self.micro_batch}; batch_size, {self.batch_size}, must be a multiple of it"
            )
        return self.micro_batch

    @property
    def parts(self) -> int:
        """How many micro-batches, one after the other, make a batch; 1 while its size is open."""
        return self.batch_size // self.at_once if self.batch_size else 1

    def build(self) -> methods.Method:
        """The method with its encoder and bottleneck, freshly initialised."""
        try:
            return self._build()
        except UserError:
            raise
        except (ValueError, TypeError, RuntimeError, AssertionError) as error:
            raise UserError(f"this model cannot be built: {' '.join(str(error).split())[:300]}") from error

    def _build(self) -> methods.Method:
        encoder: Any = self._encoder()
        settings = dataclasses.asdict(self.sem) | dataclasses.asdict(self.vq)
        settings["norm"] = None if self.sem.norm == "none" else self.sem.norm
        options = {name: settings[name] for name in bottlenecks.options(self.bottleneck) if name in settings}
        bottleneck: Any = bottlenecks.create(self.bottleneck, encoder.out_features, **options)
        second = self.sem.second_temperature if "temperature" in options else None
        method = methods.create(self.method, encoder, bottleneck, second, **self.options)
        if not self.sem.centred:
            for part in method.modules():
                if isinstance(part, Network):
                    part.offset = 0.0
        return method

    def try_encoder(self, encoder: torch.nn.Module) -> None:
        """A UserError unless an encoder of timm takes views of this size, and gives as much as it says."""
        if self.encoder in encoders.names():
            return
        trained = encoder.training
        try:
            with torch.no_grad():
                found = encoder.eval()(torch.zeros(1, 3, self.viewed, self.viewed))
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(
                f"encoder {self.encoder!r} takes no views of {self.viewed} pixels: {why}"
            ) from error
        finally:
            encoder.train(trained)
        shape, wanted = tuple(getattr(found, "shape", ())), (1, encoder.out_features)
        if shape != wanted:
            raise UserError(f"encoder {self.encoder!r} gives features of shape {shape}, not {wanted}")

    def _encoder(self) -> Any:
        if self.encoder in encoders.names():
            return encoders.create(self.encoder, self.stem, self.stem_padding)  # type: ignore[arg-type]
        try:  # transformers are built for a size of image, other models take any
            built = encoders.create(self.encoder, img_size=self.image_size)
        except TypeError:
            return encoders.create(self.encoder)
        if self.viewed != self.image_size:
            raise UserError(
                f"view_size is {self.view_size}, but encoder {self.encoder!r} takes one size of images; "
                f"leave view_size out, or give it image_size, {self.image_size}"
            )
        return built


def write_yaml(recipe: Recipe, path: Path) -> None:
    """Write a recipe whole: who is killed meanwhile leaves none rather than a part."""
    import yaml

    text = yaml.safe_dump(as_dict(recipe), sort_keys=False, allow_unicode=True)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_yaml(path: Path) -> Recipe:
    """A recipe from its file, strictly."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as a recipe: {str(error).splitlines()[0]}") from error
    try:
        recipe = from_dict(values, Recipe)
        recipe.validate()
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return recipe
