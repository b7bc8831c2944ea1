"""Augmentation image by image and pixel by pixel, in plain loops: what the whole-batch operations must equal."""

import math

import numpy as np


def crop_one(image, top, left, padding):
    """Pad [C, H, W] with zeros and cut the window at (top, left)."""
    channels, height, width = image.shape
    out = np.zeros_like(image)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                row, column = i + top - padding, j + left - padding
                if 0 <= row < height and 0 <= column < width:
                    out[c, i, j] = image[c, row, column]
    return out


def flip_one(image, where):
    """Mirror left-right if `where`."""
    out = image.copy()
    if where:
        for j in range(image.shape[2]):
            out[:, :, j] = image[:, :, image.shape[2] - 1 - j]
    return out


def rotate_one(image, degrees):
    """Counter-clockwise about the centre, nearest neighbour, zeros outside; and where the choice is not a near tie."""
    _, height, width = image.shape
    out, clear = np.zeros_like(image), np.ones((height, width), bool)
    angle = math.radians(degrees)
    for i in range(height):
        for j in range(width):
            # the picture's y axis points up, its rows go down
            right, up = j - (width - 1) / 2, (height - 1) / 2 - i
            source_right = right * math.cos(angle) + up * math.sin(angle)
            source_up = -right * math.sin(angle) + up * math.cos(angle)
            column, row = source_right + (width - 1) / 2, (height - 1) / 2 - source_up
            clear[i, j] = all(abs(abs(value - math.floor(value)) - 0.5) > 1e-6 for value in (column, row))
            column, row = round(column), round(row)
            if 0 <= row < height and 0 <= column < width:
                out[:, i, j] = image[:, row, column]
    return out, clear


def resize_one(image, size):
    """Bilinear, pixel centres aligned as areas (half-pixel), borders repeated; for enlarging."""
    channels, height, width = image.shape
    out = np.zeros((channels, size, size))
    for i in range(size):
        for j in range(size):
            y = min(max((i + 0.5) * height / size - 0.5, 0), height - 1)
            x = min(max((j + 0.5) * width / size - 0.5, 0), width - 1)
            top, left = int(y), int(x)
            bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
            dy, dx = y - top, x - left
            out[:, i, j] = (1 - dy) * ((1 - dx) * image[:, top, left] + dx * image[:, top, right]) + dy * (
                (1 - dx) * image[:, bottom, left] + dx * image[:, bottom, right]
            )
    return out


def mix_batch(images, labels, num_classes, share, box, label_smoothing):
    """Mixup by `share` if the box is empty, else cutmix: each image with its mirror in the batch, and the targets."""
    count = len(images)
    top, bottom, left, right = box
    area = (bottom - top) * (right - left)
    mixed, targets = images.copy(), np.zeros((count, num_classes))
    if area:
        share = 1 - area / (images.shape[2] * images.shape[3])
    for n in range(count):
        partner = count - 1 - n
        if area:
            mixed[n, :, top:bottom, left:right] = images[partner, :, top:bottom, left:right]
        else:
            mixed[n] = share * images[n] + (1 - share) * images[partner]
        for k in range(num_classes):
            own = label_smoothing / num_classes + (1 - label_smoothing) * (labels[n] == k)
            other = label_smoothing / num_classes + (1 - label_smoothing) * (labels[partner] == k)
            targets[n, k] = share * own + (1 - share) * other
    return mixed, targets
