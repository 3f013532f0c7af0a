"""A structurally pruned DeiT as a backbone, for the fine-tuning that follows the pruning."""

from mmengine.model import BaseModule
from torch import Tensor, nn

from mmext.checkpoints.structured import load_pruned
from mmext.registry import MODELS


@MODELS.register_module()
class StructuredPrunedViT(BaseModule):
    """The VisionTransformer that ``tools/analysis_tools/structured_pruning.py`` wrote.

    Args:
        checkpoint: the file, which holds shapes and weights; its head is left to the classifier.
        drop_path_rate: stochastic depth, linear over the blocks.
        img_size: side or (H, W) in pixels; None: that of the file. Positions are resized to it.

    ``forward(x (B, 3, H, W))`` returns a tuple of one class token (B, C), C as the file has it
    (``embed_dim``).
    """

    def __init__(self, checkpoint: str, drop_path_rate: float = 0.0,
                 img_size: int | tuple[int, int] | None = None,
                 init_cfg: dict | list | None = None):
        super().__init__(init_cfg)
        size = {} if img_size is None else {'img_size': img_size}
        self.vit = load_pruned(checkpoint, drop_path_rate=drop_path_rate, **size)
        self.vit.head = nn.Identity()
        self.embed_dim = self.vit.embed_dim

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.vit(x),)

    def init_weights(self) -> None:
        """The constructor loaded them."""
        self._is_init = True

    def no_weight_decay(self) -> set[str]:
        return {f'vit.{name}' for name in self.vit.no_weight_decay()}

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """mmpretrain's convention: embedding 0, block i -> i + 1, the rest depth + 1."""
        num_layers = len(self.vit.blocks) + 2
        name = param_name.removeprefix(prefix).removeprefix('vit.')
        if name.split('.')[0] in ('cls_token', 'pos_embed', 'patch_embed'):
            return 0, num_layers
        if name.startswith('blocks.'):
            return int(name.split('.')[1]) + 1, num_layers
        return num_layers - 1, num_layers
