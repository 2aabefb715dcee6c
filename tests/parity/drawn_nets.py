# SPDX-License-Identifier: Apache-2.0
"""Ten ordinary networks, written before their author had read the exporter, and left as they
were."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import weight_norm


# ---- 1. a U-Net that pads what does not fit, as milesial's does ----------------------------------
class DoubleConv(nn.Module):
    def __init__(self, c_in, c_out, mid=None):
        super().__init__()
        mid = mid or c_out
        self.double_conv = nn.Sequential(
            nn.Conv2d(c_in, mid, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(inplace=True),
            nn.Conv2d(mid, c_out, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.conv = DoubleConv(c_in, c_out, c_in // 2)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        dy = x2.size()[2] - x1.size()[2]
        dx = x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class PaddedUNet(nn.Module):
    def __init__(self, n_channels=3, n_classes=2):
        super().__init__()
        self.inc = DoubleConv(n_channels, 8)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(8, 16))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(16, 16))
        self.up1 = Up(32, 8)
        self.up2 = Up(16, 8)
        self.outc = nn.Conv2d(8, n_classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        return self.outc(self.up2(self.up1(x3, x2), x1))


# ---- 2. a tagger over padded sentences -----------------------------------------------------------
class PaddedTagger(nn.Module):
    def __init__(self, vocab=50, tags=7, dim=12, hidden=10):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.dropout = nn.Dropout(0.0)
        self.fc = nn.Linear(2 * hidden, tags)

    def forward(self, ids):
        mask = (ids != 0).float().unsqueeze(-1)
        out, _ = self.lstm(self.embed(ids))
        return self.fc(self.dropout(out * mask))


# ---- 3. the TCN of Bai et al., with weight_norm --------------------------------------------------
class Chomp1d(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return x[:, :, :-self.size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, c_in, c_out, kernel, dilation):
        super().__init__()
        pad = (kernel - 1) * dilation
        self.conv1 = weight_norm(nn.Conv1d(c_in, c_out, kernel, padding=pad, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(c_out, c_out, kernel, padding=pad, dilation=dilation))
        self.net = nn.Sequential(self.conv1, Chomp1d(pad), nn.ReLU(), nn.Dropout(0.0),
                                 self.conv2, Chomp1d(pad), nn.ReLU(), nn.Dropout(0.0))
        self.downsample = nn.Conv1d(c_in, c_out, 1) if c_in != c_out else None
        self.relu = nn.ReLU()

    def forward(self, x):
        out = self.net(x)
        res = x if self.downsample is None else self.downsample(x)
        return self.relu(out + res)


class NormedTCN(nn.Module):
    def __init__(self, channels=(6, 8, 8), kernel=3, classes=4):
        super().__init__()
        self.network = nn.Sequential(*[TemporalBlock(channels[i - 1] if i else 3, c, kernel, 2 ** i)
                                       for i, c in enumerate(channels)])
        self.linear = nn.Linear(channels[-1], classes)

    def forward(self, x):
        return self.linear(self.network(x)[:, :, -1])


# ---- 4. a ResNet with squeeze and excitation -----------------------------------------------------
class SELayer(nn.Module):
    def __init__(self, channel, reduction=4):
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(nn.Linear(channel, channel // reduction, bias=False), nn.ReLU(inplace=True),
                                nn.Linear(channel // reduction, channel, bias=False), nn.Sigmoid())

    def forward(self, x):
        b, c, _, _ = x.size()
        y = self.avg_pool(x).view(b, c)
        y = self.fc(y).view(b, c, 1, 1)
        return x * y.expand_as(x)


class SEBasicBlock(nn.Module):
    def __init__(self, c_in, c_out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.se = SELayer(c_out)
        self.downsample = None
        if stride != 1 or c_in != c_out:
            self.downsample = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x):
        residual = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.se(self.bn2(self.conv2(out)))
        if self.downsample is not None:
            residual = self.downsample(x)
        out += residual
        return self.relu(out)


class SEResNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.layer1 = nn.Sequential(SEBasicBlock(8, 8), SEBasicBlock(8, 8))
        self.layer2 = nn.Sequential(SEBasicBlock(8, 16, 2), SEBasicBlock(16, 16))
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        x = F.avg_pool2d(x, x.size(3))
        return self.fc(x.view(x.size(0), -1))


# ---- 5. two towers and a learned temperature -----------------------------------------------------
class TwoTowers(nn.Module):
    def __init__(self, users=40, items=60, dim=8):
        super().__init__()
        self.user = nn.Sequential(nn.Embedding(users, dim), nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, dim))
        self.item = nn.Embedding(items, dim)
        self.item_mlp = nn.Sequential(nn.Linear(dim + 3, 16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, dim))
        self.cos = nn.CosineSimilarity(dim=-1)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, user, item, features):
        u = self.user(user)
        i = self.item_mlp(torch.cat([self.item(item), features], dim=-1))
        return self.cos(u, i).unsqueeze(-1) * self.logit_scale.exp()


# ---- 6. a sentiment transformer, as the tutorial has it ------------------------------------------
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.0, max_len=64):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(1, max_len, d_model)
        pe[0, :, 0::2] = torch.sin(position * div_term)
        pe[0, :, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.dropout(x + self.pe[:, :x.size(1)])


class SentimentTransformer(nn.Module):
    def __init__(self, vocab=50, d_model=16, heads=4, layers=2, classes=2):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(vocab, d_model)
        self.pos_encoder = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, heads, dim_feedforward=32, dropout=0.0, batch_first=True)
        self.transformer_encoder = nn.TransformerEncoder(layer, layers)
        self.decoder = nn.Linear(d_model, classes)

    def forward(self, src):
        src = self.embedding(src) * math.sqrt(self.d_model)
        src = self.pos_encoder(src)
        output = self.transformer_encoder(src)
        return self.decoder(output.mean(dim=1))


# ---- 7. an MLP-mixer with einops written out -----------------------------------------------------
class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        return self.net(x)


class Mixer(nn.Module):
    def __init__(self, size=16, patch=4, dim=12, depth=2, classes=5):
        super().__init__()
        self.patch = patch
        n = (size // patch) ** 2
        self.embed = nn.Linear(3 * patch * patch, dim)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(nn.ModuleDict({"norm1": nn.LayerNorm(dim), "tokens": FeedForward(n, 2 * n),
                                              "norm2": nn.LayerNorm(dim), "channels": FeedForward(dim, 4 * dim)}))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, img):
        b, c, h, w = img.shape
        p = self.patch
        x = img.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(b, (h // p) * (w // p), p * p * c)
        x = self.embed(x)
        for block in self.blocks:
            x = x + block["tokens"](block["norm1"](x).transpose(1, 2)).transpose(1, 2)
            x = x + block["channels"](block["norm2"](x))
        return self.head(self.norm(x).mean(1))


# ---- 8. gated dilated convolutions with skips, as WaveNet has them -------------------------------
class GatedBlock(nn.Module):
    def __init__(self, channels, skip, dilation):
        super().__init__()
        self.dilated = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, skip, 1)
        self.left = dilation

    def forward(self, x):
        filt, gate = self.dilated(F.pad(x, (self.left, 0))).chunk(2, dim=1)
        z = torch.tanh(filt) * torch.sigmoid(gate)
        return x + self.residual(z), self.skip(z)


class WaveNet(nn.Module):
    def __init__(self, levels=16, channels=8, skip=12, dilations=(1, 2, 4)):
        super().__init__()
        self.levels = levels
        self.embedding = nn.Embedding(levels, channels)
        self.blocks = nn.ModuleList([GatedBlock(channels, skip, d) for d in dilations])
        self.end1 = nn.Conv1d(skip, skip, 1)
        self.end2 = nn.Conv1d(skip, levels, 1)

    def forward(self, ids):
        x = self.embedding(ids).transpose(1, 2)
        skips = []
        for block in self.blocks:
            x, s = block(x)
            skips.append(s)
        x = F.relu(sum(skips))
        return self.end2(F.relu(self.end1(x))).transpose(1, 2)


# ---- 9. a CRNN that reads lines of text ----------------------------------------------------------
class BidirectionalGRU(nn.Module):
    def __init__(self, n_in, n_hidden, n_out):
        super().__init__()
        self.rnn = nn.GRU(n_in, n_hidden, bidirectional=True)
        self.embedding = nn.Linear(n_hidden * 2, n_out)

    def forward(self, x):
        recurrent, _ = self.rnn(x)
        t, b, h = recurrent.size()
        output = self.embedding(recurrent.view(t * b, h))
        return output.view(t, b, -1)


class CRNN(nn.Module):
    def __init__(self, classes=11, hidden=8):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 8, 3, 1, 1), nn.ReLU(True), nn.MaxPool2d(2, 2),
            nn.Conv2d(8, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(True), nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
            nn.Conv2d(16, 16, 2, 1, 0), nn.ReLU(True))
        self.rnn = nn.Sequential(BidirectionalGRU(16, hidden, hidden), BidirectionalGRU(hidden, hidden, classes))

    def forward(self, x):
        conv = self.cnn(x)
        b, c, h, w = conv.size()
        assert h == 1, "the height of conv must be 1"
        conv = conv.squeeze(2)
        conv = conv.permute(2, 0, 1)
        output = self.rnn(conv)
        return F.log_softmax(output, dim=2).permute(1, 0, 2)


# ---- 10. an autoencoder --------------------------------------------------------------------------
class ConvAutoencoder(nn.Module):
    def __init__(self, latent=6):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(16 * 7 * 7, latent))
        self.decode_fc = nn.Linear(latent, 16 * 7 * 7)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1, output_padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 3, stride=2, padding=1, output_padding=1), nn.Sigmoid())

    def encode(self, x):
        return self.encoder(x)

    def decode(self, z):
        return self.decoder(self.decode_fc(z).view(-1, 16, 7, 7))

    def forward(self, x):
        return self.decode(self.encode(x))


NETWORKS = [
    ("drawn unet", PaddedUNet, ["x:f32:3x18x22"], {}), ("drawn tagger", PaddedTagger, ["ids:i64:9"], {}), ("drawn tcn", NormedTCN, ["x:f32:3x20"], {}),
    ("drawn se resnet", SEResNet, ["x:f32:3x16x16"], {}), ("drawn towers", TwoTowers, ["user_id:i64", "item_id:i64", "features:f32:3"], {}),
    ("drawn sentiment", SentimentTransformer, ["ids:i64:12"], {}), ("drawn mixer", Mixer, ["img:f32:3x16x16"], {}), ("drawn wavenet", WaveNet, ["ids:i64:20"], {}),
    ("drawn crnn", CRNN, ["x:f32:1x8x24"], {}), ("drawn autoencoder", ConvAutoencoder, ["x:f32:1x28x28"], {}),
]
