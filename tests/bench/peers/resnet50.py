# SPDX-License-Identifier: Apache-2.0
"""ResNet50 as torchvision builds it, from torch's own modules, so that a PyTorch without
torchvision has it too."""
from torch import nn

CLASSES, SIDE = 1000, 128
LAYERS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # planes, blocks, first stride


def conv_norm(n_in, n_out, kernel, stride=1):
    return [nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(n_out)]


class Bottleneck(nn.Module):
    def __init__(self, n_in, planes, stride):
        super().__init__()
        self.body = nn.Sequential(*conv_norm(n_in, planes, 1), nn.ReLU(inplace=True),
                                  *conv_norm(planes, planes, 3, stride), nn.ReLU(inplace=True),
                                  *conv_norm(planes, 4 * planes, 1))
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or n_in != 4 * planes:
            self.shortcut = nn.Sequential(*conv_norm(n_in, 4 * planes, 1, stride))

    def forward(self, x):
        return self.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


def layer(i):
    planes, blocks, stride = LAYERS[i]
    n_in = 64 if i == 0 else 4 * LAYERS[i - 1][0]
    return [Bottleneck(n_in if k == 0 else 4 * planes, planes, stride if k == 0 else 1)
            for k in range(blocks)]


def front():
    """conv1..layer2, as the tutorial cuts it."""
    return nn.Sequential(*conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
                         *layer(0), *layer(1))


def back():
    """layer3..fc"""
    return nn.Sequential(*layer(2), *layer(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(2048, CLASSES))


def batch_of(torch, n):
    """Random images and one-hot labels, as the tutorial makes them."""
    y = torch.zeros(n, CLASSES)
    return torch.randn(n, 3, SIDE, SIDE), y.scatter_(1, torch.randint(CLASSES, (n, 1)), 1)
