"""Files of fitted maps, one per layer."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hrf.features.base import FeatureMap, load
from hrf.integrations.transformers.attention import fitted_maps, use_maps
from hrf.integrations.transformers.interface import refuse
from hrf.integrations.transformers.masks import has_window

__all__ = ["load_maps", "save_maps"]

# Names by which attention modules, or else their configurations, know their sizes.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_DIM = ("head_dim", "attention_head_size")


def save_maps(model: PreTrainedModel, folder: str | PathLike[str]) -> None:
    """Write the fitted maps of a converted model, one ``.safetensors`` file per layer; save the model as always."""
    found = fitted_maps(model)
    if not found:
        raise ValueError(f"this {type(model).__name__} has no fitted maps; expected a converted model")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, feature_map in found.items():
        feature_map.save(Path(folder) / f"{name}.safetensors")


def load_maps(model: PreTrainedModel, folder: str | PathLike[str]) -> None:
    """Let a model use the maps that `save_maps` wrote. Maps of another model are refused, and nothing changes."""
    paths = sorted(Path(folder).glob("*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no .safetensors files; expected the files of save_maps")
    refuse(model)
    modules = dict(model.named_modules())
    _check_names(model, modules, [path.stem for path in paths], folder)
    maps = {path.stem: load(path) for path in paths}
    for name, feature_map in maps.items():
        _check_sizes(name, modules[name], feature_map)
    use_maps(model, maps)


def _check_names(
    model: PreTrainedModel, modules: dict[str, nn.Module], names: list[str], folder: str | PathLike[str]
) -> None:
    """Refuse files that belong to no attention module, and attention modules without a file."""
    kinds = {type(modules[name]) for name in names if name in modules and _is_attention(modules[name])}
    strange = [name for name in names if name not in modules or type(modules[name]) not in kinds]
    expected = f"expected the files that save_maps wrote for this {type(model).__name__}"
    if strange:
        raise ValueError(
            f"{folder} has maps for {len(names)} layers, but this model has no attention layer {_listed(strange)}; "
            f"{expected}"
        )
    missing = [
        name
        for name, module in modules.items()
        if type(module) in kinds and name not in names and not has_window(module)
    ]
    if missing:
        raise ValueError(
            f"{folder} has maps for {len(names)} layers and none for the attention layer {_listed(missing)}; {expected}"
        )


def _is_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower()


def _listed(names: list[str]) -> str:
    """Name the first, and count the rest."""
    return f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _check_sizes(name: str, module: nn.Module, feature_map: FeatureMap) -> None:
    """Refuse a map for another number of heads or another dimension, where the module tells its own."""
    for what, received, expected in (
        ("heads", feature_map.heads, _size(module, _HEADS)),
        ("dimensions per head", feature_map.dim, _size(module, _DIM)),
    ):
        if None not in (received, expected) and received != expected:
            raise ValueError(
                f"the map for {name!r} is for {received} {what}, the layer has {expected}; expected maps fitted to "
                "this model"
            )


def _size(module: nn.Module, names: tuple[str, ...]) -> int | None:
    """Return the first size of these names that a module or its configuration has, or ``None``."""
    places: tuple[Any, ...] = (module, getattr(module, "config", None))
    found = (getattr(place, name, None) for place in places for name in names)
    return next((size for size in found if isinstance(size, int)), None)
