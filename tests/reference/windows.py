"""The windows of a 3 x 3 convolution by torch."""

from torch.nn import functional as F

from ncollapse.models.stem import COLUMNS


def define_windows(x):
    """As `unfold_windows` lays them out; torch itself puts channels first."""
    images, channels, height, width = x.shape
    found = F.unfold(x, 3, padding=1).reshape(images, channels, 9, height * width).permute(0, 3, 2, 1).flatten(2)
    return F.pad(found.flatten(0, 1), (0, COLUMNS - 9 * channels)).bfloat16()
