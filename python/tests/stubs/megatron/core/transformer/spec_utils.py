"""Stands for megatron.core.transformer.spec_utils of Megatron-Core 0.16."""
import dataclasses


@dataclasses.dataclass
class ModuleSpec:
    module: type
    params: dict = dataclasses.field(default_factory=dict)
    submodules: object = None
    metainfo: dict = dataclasses.field(default_factory=dict)


def build_module(spec_or_module, *arguments, **options):
    if not isinstance(spec_or_module, ModuleSpec):
        return spec_or_module(*arguments, **options)
    if spec_or_module.submodules is not None:
        options["submodules"] = spec_or_module.submodules
    return spec_or_module.module(*arguments, **options, **spec_or_module.params)
