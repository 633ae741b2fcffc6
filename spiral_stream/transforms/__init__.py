"""Arrays and texts to other arrays, as frozen values of the plan: images, tokens, users' functions.

Start at: `transform` (the interface), then `chain`.
May not know: batches, sources.

It is also the public namespace of transforms, and of what one of your own derives from: ``spiral.transforms.Resize``.
"""

from typing import TYPE_CHECKING, Final

from spiral_stream.habits import door

if TYPE_CHECKING:
    from spiral_stream.transforms.image.color import ColorJitter, GaussianBlur, Grayscale, RandomGrayscale
    from spiral_stream.transforms.image.crop_and_resize import (
        CenterCrop,
        ImageTransform,
        Normalize,
        RandomCrop,
        RandomHorizontalFlip,
        RandomResizedCrop,
        Resize,
    )
    from spiral_stream.transforms.image.erasing import RandomErasing
    from spiral_stream.transforms.image.pixel_transform import PixelTransform
    from spiral_stream.transforms.image.placement import Placement
    from spiral_stream.transforms.image.rand_augment import RandAugment
    from spiral_stream.transforms.image.warp import RandomAffine, RandomRotation
    from spiral_stream.transforms.python import fn
    from spiral_stream.transforms.text.chat import ChatTemplate
    from spiral_stream.transforms.text.tokenize import Tokenize
    from spiral_stream.transforms.transform import Named, Transform

__all__ = [
    "CenterCrop",
    "ChatTemplate",
    "ColorJitter",
    "GaussianBlur",
    "Grayscale",
    "ImageTransform",
    "Named",
    "Normalize",
    "PixelTransform",
    "Placement",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "Resize",
    "Tokenize",
    "Transform",
    "fn",
]

_LATE: Final = {
    "CenterCrop": "spiral_stream.transforms.image.crop_and_resize",
    "ChatTemplate": "spiral_stream.transforms.text.chat",
    "ColorJitter": "spiral_stream.transforms.image.color",
    "GaussianBlur": "spiral_stream.transforms.image.color",
    "Grayscale": "spiral_stream.transforms.image.color",
    "ImageTransform": "spiral_stream.transforms.image.crop_and_resize",
    "Named": "spiral_stream.transforms.transform",
    "Normalize": "spiral_stream.transforms.image.crop_and_resize",
    "PixelTransform": "spiral_stream.transforms.image.pixel_transform",
    "Placement": "spiral_stream.transforms.image.placement",
    "RandAugment": "spiral_stream.transforms.image.rand_augment",
    "RandomAffine": "spiral_stream.transforms.image.warp",
    "RandomCrop": "spiral_stream.transforms.image.crop_and_resize",
    "RandomErasing": "spiral_stream.transforms.image.erasing",
    "RandomGrayscale": "spiral_stream.transforms.image.color",
    "RandomHorizontalFlip": "spiral_stream.transforms.image.crop_and_resize",
    "RandomResizedCrop": "spiral_stream.transforms.image.crop_and_resize",
    "RandomRotation": "spiral_stream.transforms.image.warp",
    "Resize": "spiral_stream.transforms.image.crop_and_resize",
    "Tokenize": "spiral_stream.transforms.text.tokenize",
    "Transform": "spiral_stream.transforms.transform",
    "fn": "spiral_stream.transforms.python",
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __getattr__, __dir__ = door(__name__, _LATE)
