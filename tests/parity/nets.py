# SPDX-License-Identifier: Apache-2.0
"""Models for deploy/export_torch.py: one of everything it takes, and what it must refuse."""
from collections import OrderedDict

import torch
from torch import nn

SIDE, CLASSES = 12, 10


def everything():
    """Every supported module with settings that are not the defaults, nested and named; in
    batch norm, statistics and factors that have moved. Images [N, 1, 12, 12]."""
    torch.manual_seed(3)
    net = nn.Sequential(OrderedDict([
        ("stem", nn.Sequential(nn.Conv2d(1, 8, 3, padding="same", bias=False),
                               nn.BatchNorm2d(8, eps=1e-3, momentum=0.2), nn.ReLU())),
        ("nothing", nn.Identity()),
        ("pool", nn.MaxPool2d(3, stride=2, padding=1)),
        ("open", nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, output_padding=1, groups=2)),
        ("apart", nn.Conv2d(8, 8, 3, stride=2, padding=2, dilation=2)),
        ("mix", nn.Sequential(nn.Conv2d(8, 12, (3, 1), stride=(2, 1), padding=(1, 0), groups=4),
                              nn.GELU(), nn.AvgPool2d(2, stride=1, padding=1))),
        ("flat", nn.Flatten()),
        ("wide", nn.Linear(12 * 4 * 7, 24)),
        ("squash", nn.Sigmoid()),
        ("norm", nn.BatchNorm1d(24)),
        ("tanh", nn.Tanh()),
        ("drop", nn.Dropout(0.0)),
        ("row", nn.Unflatten(1, (6, 4))),
        ("line", nn.Conv1d(6, 5, 3, padding="same", dilation=2)),
        ("long", nn.ConvTranspose1d(5, 6, 2, stride=2, bias=False)),
        ("flat1", nn.Flatten()),
        ("fold", nn.Unflatten(1, (6, 2, 4))),
        ("mean", nn.AdaptiveAvgPool2d(1)),
        ("flat2", nn.Flatten()),
        ("soft", nn.Softmax(dim=1)),
        ("head", nn.Linear(6, CLASSES, bias=False)),
        ("log", nn.LogSoftmax(dim=-1))]))
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.Linear)):
                m.weight.mul_(4)  # else little of the input is left in the output
            elif isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
                m.weight.uniform_(0.5, 1.5)
                m.bias.uniform_(-0.5, 0.5)
        for _ in range(5):
            net(torch.rand(16, 1, SIDE, SIDE))
    return net


def resnet():
    """A one-channel ResNet 18 of torchvision, as for Fashion-MNIST."""
    from torchvision.models import resnet18
    torch.manual_seed(5)
    net = resnet18(num_classes=CLASSES)
    net.conv1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    return net


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


twice = nn.Linear(4, 4)

# one fault per model: (model, what the refusal must say)
REFUSED = [
    (nn.Sequential(nn.Linear(4, 4), nn.RNN(4, 4)), r"layer '1': RNN is not supported"),
    (nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4)), r"layer '1': LSTM with batch_first=False"),
    (nn.Sequential(Scaled(4, 4)), r"layer '0': Scaled is not supported"),
    (nn.Sequential(nn.Conv3d(1, 1, 3)), r"layer '0': Conv3d is not supported"),
    (nn.Sequential(nn.Conv2d(1, 1, 3, padding_mode="reflect")), "padding_mode='reflect'"),
    (nn.Sequential(nn.Conv2d(1, 1, 2, padding="same")), "even kernel"),
    (nn.Sequential(nn.MaxPool2d(2, ceil_mode=True)), "ceil_mode=True"),
    (nn.Sequential(nn.AvgPool2d(3, padding=1, count_include_pad=False)), "count_include_pad=False"),
    (nn.Sequential(nn.BatchNorm2d(3, affine=False)), "affine=False"),
    (nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)), "track_running_stats=False"),
    (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Softmax(dim=1)), "dim=1"),
    (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(4, 4)), "rank 4"),
    (nn.Sequential(nn.Linear(4, 4).double()), r"'0.weight': torch.float64"),
    (nn.Sequential(twice, nn.ReLU(), twice), r"'2.weight': shared with '0.weight'"),
    (nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4))), "hooks or parametrizations"),
    (nn.Linear(4, 4), "Linear is not an nn.Sequential"),
    (nn.Sequential(), "no layers"),
]
