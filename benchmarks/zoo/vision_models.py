"""Image models of torchvision and timm: the library's own code, random weights, images of 32 to 64 pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from entry import CLASSES, Entry, images, import_torchvision
from torch import nn


def _torchvision(name: str, *, size: int = 32, **settings: Any) -> Entry:
    def make() -> nn.Module:
        return getattr(import_torchvision().models, name)(weights=None, num_classes=CLASSES, **settings)

    return Entry(name, "torchvision", lambda: images(make, size=size))


def _small_vit() -> nn.Module:
    kind = import_torchvision().models.VisionTransformer
    return kind(32, 8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=CLASSES)


def _small_swin(version: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        swin = import_torchvision().models.swin_transformer
        block = swin.SwinTransformerBlockV2 if version == 2 else swin.SwinTransformerBlock
        merging = swin.PatchMergingV2 if version == 2 else swin.PatchMerging
        return swin.SwinTransformer(
            [4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=CLASSES, block=block, downsample_layer=merging
        )

    return make


def _small_efficientnet() -> nn.Module:
    efficientnet = import_torchvision().models.efficientnet
    setting = [
        efficientnet.MBConvConfig(1, 3, 1, 16, 8, 1),
        efficientnet.MBConvConfig(4, 3, 2, 8, 16, 1),
        efficientnet.MBConvConfig(4, 5, 1, 16, 16, 2),
    ]
    return efficientnet.EfficientNet(setting, dropout=0.2, num_classes=CLASSES)


def _small_densenet() -> nn.Module:
    kind = import_torchvision().models.DenseNet
    return kind(growth_rate=8, block_config=(2, 2), num_init_features=16, num_classes=CLASSES)


def _small_mnasnet() -> nn.Module:
    return import_torchvision().models.MNASNet(0.1, num_classes=CLASSES)


def _small_regnet() -> nn.Module:
    regnet = import_torchvision().models.regnet
    setting = regnet.BlockParams.from_init_params(depth=4, w_0=16, w_a=8.0, w_m=2.0, group_width=8, se_ratio=0.25)
    return regnet.RegNet(setting, num_classes=CLASSES)


def _small_convnext() -> nn.Module:
    convnext = import_torchvision().models.convnext
    setting = [convnext.CNBlockConfig(16, 32, 1), convnext.CNBlockConfig(32, None, 1)]
    return convnext.ConvNeXt(setting, num_classes=CLASSES)


def _timm(name: str, *, size: int = 32, **settings: Any) -> Entry:
    def make() -> nn.Module:
        import_torchvision()  # timm imports it
        import timm

        return timm.create_model(name, pretrained=False, num_classes=CLASSES, **settings)

    return Entry(name, "timm", lambda: images(make, size=size))


def _mixer(block: str, *, gated: bool = False, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import_torchvision()
        from timm.models import mlp_mixer

        layer = getattr(mlp_mixer, block)
        if gated:
            settings["mlp_layer"] = mlp_mixer.GatedMlp
        return mlp_mixer.MlpMixer(CLASSES, 32, patch_size=8, num_blocks=2, embed_dim=32, block_layer=layer, **settings)

    return make


def _poolformer() -> nn.Module:
    import_torchvision()
    from timm.models import metaformer

    return metaformer.MetaFormer(num_classes=CLASSES, depths=(1, 1), dims=(16, 32))


def _convmixer() -> nn.Module:
    import_torchvision()
    from timm.models import convmixer

    return convmixer.ConvMixer(16, 2, kernel_size=5, patch_size=4, num_classes=CLASSES)


_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
ENTRIES = [
    _torchvision("resnet18"),
    _torchvision("mobilenet_v2", size=64, width_mult=0.25),
    _torchvision("mobilenet_v3_small", size=64, width_mult=0.5),
    _torchvision("shufflenet_v2_x0_5"),
    _torchvision("squeezenet1_1", size=64),
    Entry("EfficientNet", "torchvision", lambda: images(_small_efficientnet)),
    Entry("DenseNet", "torchvision", lambda: images(_small_densenet)),
    Entry("MNASNet", "torchvision", lambda: images(_small_mnasnet, size=64)),
    Entry("RegNet", "torchvision", lambda: images(_small_regnet)),
    Entry("VisionTransformer", "torchvision", lambda: images(_small_vit)),
    Entry("SwinTransformer", "torchvision", lambda: images(_small_swin(1))),
    Entry("SwinTransformer V2", "torchvision", lambda: images(_small_swin(2))),
    Entry("ConvNeXt", "torchvision", lambda: images(_small_convnext)),
    _timm("resnet10t"),
    _timm("ghostnet_050", size=64),
    _timm("mobilenetv3_small_050", size=64),
    _timm("lcnet_035", size=64),
    _timm("regnetx_002"),
    _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 16, 32)),
    _timm("convnextv2_atto", depths=(1, 1, 1, 1), dims=(8, 16, 16, 32)),
    _timm("deit_tiny_patch16_224", **_VIT),
    _timm("vit_tiny_patch16_224", **_VIT),
    _timm("beit_base_patch16_224", **_VIT),
    _timm("eva02_tiny_patch14_224", **_VIT),
    _timm("cait_xxs24_224", **_VIT),
    _timm("xcit_nano_12_p8_224", **_VIT),
    _timm("swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=16, depths=(1, 1), num_heads=(2, 2)),
    _timm("swinv2_tiny_window8_256", img_size=32, window_size=4, embed_dim=16, depths=(1, 1), num_heads=(2, 2)),
    Entry("MLP-Mixer", "timm", lambda: images(_mixer("MixerBlock"))),
    Entry("ResMLP", "timm", lambda: images(_mixer("ResBlock", mlp_ratio=4))),
    Entry("gMLP", "timm", lambda: images(_mixer("SpatialGatingBlock", gated=True, mlp_ratio=4))),
    Entry("PoolFormer", "timm", lambda: images(_poolformer)),
    Entry("ConvMixer", "timm", lambda: images(_convmixer)),
    _timm("mobilevit_xxs", size=64),
    _timm("edgenext_xx_small", size=64),
    _timm("levit_128s", img_size=64, size=64),
]
