"""Share of the key-value columns that a model drops, counted as it runs.

"Exploiting Biases in Attention for Transformers" (2026), Table 8, gives one pruning ratio for each
threshold model, averaged over data, heads and layers.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmext.layers.biased_attention import BiasedAttention


class PruningRatio:
    """Counts dropped columns while it is entered, layer by layer; costs no second forward pass.

        with PruningRatio(model) as pruned:
            model(images)
        print(pruned.ratio)

    Columns of padding count as neither. Layers without key bias are left out.

    Attributes:
        layers: the bias-pruned attention modules, first to last.
        total: (L, 2), sum over the images of the mean ratio over the heads, and number of images
            (of windows, in a layer that has windows).
    """

    def __init__(self, model: nn.Module):
        self.layers = [module for module in model.modules()
                       if isinstance(module, BiasedAttention) and module.key_bias is not None]
        self.total = torch.zeros(len(self.layers), 2, dtype=torch.float64)

    def __enter__(self) -> 'PruningRatio':
        for number, layer in enumerate(self.layers):
            layer.choose = self._counting(number, layer.choose)
        return self

    def __exit__(self, *error) -> None:
        for layer in self.layers:
            del layer.choose  # the method of its class shows again

    def _counting(self, number: int, choose: Callable) -> Callable:
        def counted(bias: Tensor, valid: Tensor | None = None, log_size: Tensor | None = None):
            columns = choose(bias, valid, log_size)
            kept = columns.mask(bias).double().sum(-1).mean(1)  # (B,)
            there = bias.shape[-1] if valid is None else valid.sum(-1)
            dropped = (1 - kept / there).sum().item()
            self.total[number] += torch.tensor([dropped, len(kept)], dtype=torch.float64)
            return columns
        return counted

    @property
    def of_layers(self) -> list[float]:
        """Mean over images and heads, layer by layer."""
        return (self.total[:, 0] / self.total[:, 1]).tolist()

    @property
    def ratio(self) -> float:
        """Mean over the layers, each counting once; nan where nothing ran."""
        return float(torch.tensor(self.of_layers, dtype=torch.float64).mean())
