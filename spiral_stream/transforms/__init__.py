"""Arrays and texts to other arrays, as frozen values of the plan: images, tokens, users' functions.

Start at: `transform` (the interface), then `chain`.
May not know: batches, sources.

It is also the public namespace of transforms, and of what one of your own derives from: ``spiral.transforms.Resize``.
"""

from typing import TYPE_CHECKING

from spiral_stream.habits import door

if TYPE_CHECKING:  # the alias exports a name to type checkers
    from spiral_stream.transforms.image.color import ColorJitter as ColorJitter
    from spiral_stream.transforms.image.color import GaussianBlur as GaussianBlur
    from spiral_stream.transforms.image.color import Grayscale as Grayscale
    from spiral_stream.transforms.image.color import RandomGrayscale as RandomGrayscale
    from spiral_stream.transforms.image.crop_and_resize import CenterCrop as CenterCrop
    from spiral_stream.transforms.image.crop_and_resize import CenterCropDown as CenterCropDown
    from spiral_stream.transforms.image.crop_and_resize import FitToShape as FitToShape
    from spiral_stream.transforms.image.crop_and_resize import ImageTransform as ImageTransform
    from spiral_stream.transforms.image.crop_and_resize import Normalize as Normalize
    from spiral_stream.transforms.image.crop_and_resize import RandomCrop as RandomCrop
    from spiral_stream.transforms.image.crop_and_resize import RandomHorizontalFlip as RandomHorizontalFlip
    from spiral_stream.transforms.image.crop_and_resize import RandomResizedCrop as RandomResizedCrop
    from spiral_stream.transforms.image.crop_and_resize import Resize as Resize
    from spiral_stream.transforms.image.erasing import RandomErasing as RandomErasing
    from spiral_stream.transforms.image.pixel_transform import PixelTransform as PixelTransform
    from spiral_stream.transforms.image.placement import Placement as Placement
    from spiral_stream.transforms.image.rand_augment import RandAugment as RandAugment
    from spiral_stream.transforms.image.sizes import ImageSizes as ImageSizes
    from spiral_stream.transforms.image.warp import RandomAffine as RandomAffine
    from spiral_stream.transforms.image.warp import RandomRotation as RandomRotation
    from spiral_stream.transforms.loaded import draw_variant as draw_variant
    from spiral_stream.transforms.loaded import loads as loads
    from spiral_stream.transforms.loaded import take_variant as take_variant
    from spiral_stream.transforms.python import fn as fn
    from spiral_stream.transforms.text.chat import ChatTemplate as ChatTemplate
    from spiral_stream.transforms.text.image_tokens import ImageTokens as ImageTokens
    from spiral_stream.transforms.text.tokenize import Tokenize as Tokenize
    from spiral_stream.transforms.transform import Named as Named
    from spiral_stream.transforms.transform import Transform as Transform

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __all__, __getattr__, __dir__ = door(
        __name__,
        {
            "transforms.image.color": ["ColorJitter", "GaussianBlur", "Grayscale", "RandomGrayscale"],
            "transforms.image.crop_and_resize": [
                "CenterCrop",
                "CenterCropDown",
                "FitToShape",
                "ImageTransform",
                "Normalize",
                "RandomCrop",
                "RandomHorizontalFlip",
                "RandomResizedCrop",
                "Resize",
            ],
            "transforms.image.erasing": ["RandomErasing"],
            "transforms.image.pixel_transform": ["PixelTransform"],
            "transforms.image.placement": ["Placement"],
            "transforms.image.rand_augment": ["RandAugment"],
            "transforms.image.sizes": ["ImageSizes"],
            "transforms.image.warp": ["RandomAffine", "RandomRotation"],
            "transforms.loaded": ["draw_variant", "loads", "take_variant"],
            "transforms.python": ["fn"],
            "transforms.text.chat": ["ChatTemplate"],
            "transforms.text.image_tokens": ["ImageTokens"],
            "transforms.text.tokenize": ["Tokenize"],
            "transforms.transform": ["Named", "Transform"],
        },
    )
