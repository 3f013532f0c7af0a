"""mmdet's data preprocessor with one more channel that tells image from padding.

Large-scale jitter pads an image of 102² to 1024²: 99 % of the tokens are then padding.
Attention that sums statistics over tokens would learn the padding, so the mask travels with the
image to the backbone, which strips it. No detector class needs to know.
"""

from mmdet.models.data_preprocessors import DetDataPreprocessor
from torch import Tensor

from mmext.registry import MODELS


@MODELS.register_module()
class MaskedDetDataPreprocessor(DetDataPreprocessor):
    """Appends a channel that is 1 where there is image and 0 where there is padding.

    The extent of each image is its ``img_shape`` after the pipeline (the size of the input
    where there are no data samples), so all padding done here counts: to the batch's largest
    size, to ``pad_size_divisor``, and by ``batch_augments``. Padding inside the pipeline cannot be
    told from image: pad here instead of with mmdet's ``Pad`` transform.

    Padding comes after normalization, so ``pad_value=0`` is the mean color, as in ViTDet.

    Args:
        val_pad_size_divisor: ``pad_size_divisor`` of validation and test; None takes that of
            training. With the patch size an image costs what its own tokens cost, not what a
            square canvas does.
        kwargs: of ``DetDataPreprocessor``.
    """

    def __init__(self, *args, val_pad_size_divisor: int | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.train_pad_size_divisor = self.pad_size_divisor
        self.val_pad_size_divisor = val_pad_size_divisor or self.pad_size_divisor

    def forward(self, data: dict, training: bool = False) -> dict:
        """As mmdet's, with ``inputs`` (B, 4, H, W) in place of (B, 3, H, W)."""
        self.pad_size_divisor = (self.train_pad_size_divisor if training
                                 else self.val_pad_size_divisor)
        shapes = [tuple(image.shape[-2:]) for image in data['inputs']]
        data = super().forward(data, training)
        images, samples = data['inputs'], data['data_samples']
        if samples is not None:
            shapes = [
                sample.metainfo.get('img_shape', shape)
                for sample, shape in zip(samples, shapes, strict=True)
            ]
        data['inputs'] = append_valid_mask(images, shapes)
        return data


def append_valid_mask(images: Tensor, shapes: list[tuple[int, int]]) -> Tensor:
    """images (B, C, H, W) padded right and bottom, shapes (h, w) of each -> (B, C + 1, H, W)."""
    padded = images.new_zeros(len(images), images.shape[1] + 1, *images.shape[2:])
    padded[:, :-1] = images
    for mask, (height, width) in zip(padded[:, -1], shapes, strict=True):
        mask[:height, :width] = 1
    return padded
