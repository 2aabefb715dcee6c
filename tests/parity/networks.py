# SPDX-License-Identifier: Apache-2.0
"""Networks as people publish them, for tests/parity/exports.py: those of torchvision, and small
ones of tutorials, written in the ways that tutorials write them. Each row of NETWORKS has a name, a
function that makes it, the inputs as --input has them, and more words of the row."""
import math

import torch
from torch import nn
from torch.nn import functional as F

IMAGE, DIGIT, WORDS = ["pixels:f32:3x64x64"], ["pixels:f32:1x28x28"], ["ids:i64:12"]


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, self.num_flat_features(x))
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)

    def num_flat_features(self, x):
        n = 1
        for s in x.size()[1:]:
            n *= s
        return n


class Mnist(nn.Module):
    """pytorch/examples, mnist/main.py."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


class Tabular(nn.Module):
    """An MLP with batch norm; a number of each record."""

    def __init__(self, features=12):
        super().__init__()
        self.fc1, self.bn1, self.fc2, self.bn2, self.out = nn.Linear(features, 64), nn.BatchNorm1d(64), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 1)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.3)

    def forward(self, x):
        x = self.drop(self.relu(self.bn1(self.fc1(x))))
        x = self.drop(self.relu(self.bn2(self.fc2(x))))
        return torch.sigmoid(self.out(x)).squeeze(1)


class BasicBlock(nn.Module):
    def __init__(self, inp, out, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inp, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu, self.stride, self.out = nn.ReLU(inplace=True), stride, out

    def shortcut(self, x):
        """Option A of the paper: every other place, and channels of zeros."""
        if self.stride == 1:
            return x
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.out // 4, self.out // 4), "constant", 0)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class CifarResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.layers = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 16, 2), BasicBlock(16, 32, 2))
        self.linear = nn.Linear(32, 10)

    def forward(self, x):
        out = self.layers(F.relu(self.bn(self.conv(x))))
        out = F.avg_pool2d(out, out.size()[3])
        return self.linear(out.view(out.size(0), -1))


class DoubleConv(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.double_conv = nn.Sequential(nn.Conv2d(inp, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
                                         nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, inp, out, kind):
        super().__init__()
        if kind == "transposed":
            self.up = nn.ConvTranspose2d(inp, inp // 2, 2, stride=2)
        else:
            self.up = nn.Sequential(nn.Upsample(scale_factor=2, mode=kind, **({"align_corners": True} if kind == "bilinear" else {})), nn.Conv2d(inp, inp // 2, 1))
        self.conv = DoubleConv(inp, out)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        dy, dx = x2.size()[2] - x1.size()[2], x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    """milesial/Pytorch-UNet, narrow; the extents of its input are odd here and there."""

    def __init__(self, kind="transposed"):
        super().__init__()
        self.inc, self.down1, self.down2 = DoubleConv(3, 8), nn.Sequential(nn.MaxPool2d(2), DoubleConv(8, 16)), nn.Sequential(nn.MaxPool2d(2), DoubleConv(16, 32))
        self.up1, self.up2, self.outc = Up(32, 16, kind), Up(16, 8, kind), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        return self.outc(self.up2(self.up1(x3, x2), x1))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 128), nn.ReLU(True), nn.Linear(128, 64), nn.ReLU(True), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(True), nn.Linear(64, 128), nn.ReLU(True), nn.Linear(128, 784), nn.Tanh())

    def forward(self, x):
        return self.decoder(self.encoder(x.view(x.shape[0], -1))).view(-1, 1, 28, 28)


class ConvAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1), nn.MaxPool2d(2, 2)
        self.t_conv1, self.t_conv2 = nn.ConvTranspose2d(4, 16, 2, stride=2), nn.ConvTranspose2d(16, 1, 2, stride=2)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return torch.sigmoid(self.t_conv2(F.relu(self.t_conv1(x))))


class Vae(nn.Module):
    """Draws random numbers in forward, so it stays out."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22, self.fc3, self.fc4 = nn.Linear(784, 40), nn.Linear(40, 5), nn.Linear(40, 5), nn.Linear(5, 40), nn.Linear(40, 784)

    def forward(self, x):
        h = F.relu(self.fc1(x.view(-1, 784)))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))


class LstmClassifier(nn.Module):
    def __init__(self, layers=1, both=False, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, layers, batch_first=True, bidirectional=both, dropout=dropout)
        self.dropout, self.fc, self.both = nn.Dropout(0.5), nn.Linear(48 if both else 24, 3), both

    def forward(self, text):
        embedded = self.dropout(self.embedding(text))
        output, (hidden, cell) = self.lstm(embedded)
        hidden = torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1) if self.both else hidden[-1]
        return self.fc(self.dropout(hidden))


class SeriesLstm(nn.Module):
    """A forecast: states of zeros that forward makes, and the last output."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.hidden, self.layers, self.kind = 16, 2, kind
        self.rnn, self.fc = kind(4, 16, 2, batch_first=True), nn.Linear(16, 1)

    def forward(self, x):
        h0 = torch.zeros(self.layers, x.size(0), self.hidden).to(x.device)
        state = (h0, torch.zeros(self.layers, x.size(0), self.hidden).to(x.device)) if self.kind is nn.LSTM else h0
        out, _ = self.rnn(x, state)
        return self.fc(out[:, -1, :])


class Tagger(nn.Module):
    """PyTorch's tutorial, with the steps first."""

    def __init__(self):
        super().__init__()
        self.word_embeddings, self.lstm, self.hidden2tag = nn.Embedding(30, 8), nn.LSTM(8, 12), nn.Linear(12, 5)

    def forward(self, sentence):
        embeds = self.word_embeddings(sentence).permute(1, 0, 2)
        lstm_out, _ = self.lstm(embeds)
        return F.log_softmax(self.hidden2tag(lstm_out.transpose(0, 1)), dim=-1)


class GruClassifier(nn.Module):
    def __init__(self, both=False):
        super().__init__()
        self.emb, self.gru = nn.Embedding(40, 12), nn.GRU(12, 16, num_layers=2 if both else 1, batch_first=True, bidirectional=both)
        self.fc, self.both = nn.Linear(32 if both else 16, 4), both

    def forward(self, x):
        out, h = self.gru(self.emb(x))
        return self.fc(torch.cat([h[-2], h[-1]], -1) if self.both else h.squeeze(0))


class TextCnn(nn.Module):
    """Kim's CNN for sentences."""

    def __init__(self, flat=True):
        super().__init__()
        self.embed, self.flat = nn.Embedding(60, 20), flat
        kind = (lambda k: nn.Conv1d(20, 8, k)) if flat else (lambda k: nn.Conv2d(1, 8, (k, 20)))
        self.convs = nn.ModuleList([kind(k) for k in (3, 4, 5)])
        self.dropout, self.fc1 = nn.Dropout(0.5), nn.Linear(24, 2)

    def forward(self, x):
        x = self.embed(x)
        if self.flat:
            x = [F.relu(conv(x.permute(0, 2, 1))) for conv in self.convs]
            x = [torch.max(i, dim=2)[0] for i in x]
        else:
            x = [F.relu(conv(x.unsqueeze(1))).squeeze(3) for conv in self.convs]
            x = [F.max_pool1d(i, i.size(2)).squeeze(2) for i in x]
        return self.fc1(self.dropout(torch.cat(x, 1)))


class FastText(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(60, 20), nn.Linear(20, 4)

    def forward(self, text):
        embedded = self.embedding(text)
        pooled = F.avg_pool2d(embedded.unsqueeze(1), (embedded.shape[1], 1)).squeeze(1)
        return self.fc(pooled.squeeze(1))


class PositionalEncoding(nn.Module):
    def __init__(self, width, dropout=0.1, longest=40, first=True):
        super().__init__()
        self.dropout, self.first = nn.Dropout(dropout), first
        position = torch.arange(longest).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        pe = torch.zeros(longest, width)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(1) if first else pe.unsqueeze(0))

    def forward(self, x):
        x = x + (self.pe[:x.size(0)] if self.first else self.pe[:, :x.size(1)])
        return self.dropout(x)


class TransformerClassifier(nn.Module):
    """nn.TransformerEncoder with places by sines; steps or records first."""

    def __init__(self, steps_first=False):
        super().__init__()
        self.steps_first, self.width = steps_first, 16
        self.embedding, self.pos_encoder = nn.Embedding(50, 16), PositionalEncoding(16, 0.1, first=steps_first)
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=not steps_first)
        self.transformer_encoder, self.decoder = nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)

    def forward(self, src):
        x = self.embedding(src) * math.sqrt(self.width)
        if self.steps_first:
            x = self.transformer_encoder(self.pos_encoder(x.transpose(0, 1)))
            return self.decoder(x.mean(dim=0))
        return self.decoder(self.transformer_encoder(self.pos_encoder(x)).mean(dim=1))


class SelfAttention(nn.Module):
    """Attention by hand with einsum, as in many tutorials."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head_dim, self.width = heads, width // heads, width
        self.values, self.keys, self.queries, self.fc_out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        n, length, _ = x.shape
        v, k, q = (f(x).reshape(n, length, self.heads, self.head_dim) for f in (self.values, self.keys, self.queries))
        energy = torch.einsum("nqhd,nkhd->nhqk", [q, k])
        attention = torch.softmax(energy / (self.width ** (1 / 2)), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, v]).reshape(n, length, self.heads * self.head_dim)
        return self.fc_out(out)


class Ffn(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        return self.net(x)


class VitAttention(nn.Module):
    """lucidrains/vit-pytorch, simple."""

    def __init__(self, width, heads, head):
        super().__init__()
        self.heads, self.scale = heads, head ** -0.5
        self.norm, self.attend, self.to_qkv, self.to_out = nn.LayerNorm(width), nn.Softmax(dim=-1), nn.Linear(width, heads * head * 3, bias=False), nn.Linear(heads * head, width)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(self.norm(x)).chunk(3, dim=-1))
        attn = self.attend(torch.matmul(q, k.transpose(-1, -2)) * self.scale)
        return self.to_out(torch.matmul(attn, v).transpose(1, 2).reshape(b, n, -1))


class Vit(nn.Module):
    def __init__(self, scaled=False):
        super().__init__()
        width = 24
        self.proj, self.cls_token = nn.Conv2d(3, width, 8, stride=8), nn.Parameter(torch.randn(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.randn(1, 17, width))
        self.layers = nn.ModuleList([nn.ModuleList([VitAttention(width, 3, 8), Ffn(width)]) for _ in range(2)])
        self.gammas = nn.ParameterList([nn.Parameter(0.1 * torch.ones(width)) for _ in range(2)]) if scaled else None
        self.dropout, self.norm, self.head = nn.Dropout(0.1), nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, img):
        x = self.proj(img).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.dropout(x + self.pos_embedding[:, :(x.shape[1])])
        for k, (attn, ff) in enumerate(self.layers):
            x = attn(x) + x if self.gammas is None else self.gammas[k] * attn(x) + x
            x = ff(x) + x
        return self.head(self.norm(x)[:, 0])


class SmallGpt(nn.Module):
    """minGPT: attention by hand with a buffer for the mask; the head shares the table of words."""

    def __init__(self):
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(40, 16), nn.Parameter(torch.zeros(1, 12, 16))
        self.c_attn, self.c_proj, self.ln1, self.ln2, self.ln_f = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(0.1))
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.tok_emb.weight
        self.register_buffer("bias", torch.tril(torch.ones(12, 12)).view(1, 1, 12, 12))

    def attention(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k, q, v = (t.view(B, T, 2, C // 2).transpose(1, 2) for t in (k, q, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, idx):
        b, t = idx.size()
        assert t <= 12, "a sequence that is too long"
        x = self.tok_emb(idx) + self.pos_emb[:, :t, :]
        x = x + self.attention(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        return self.head(self.ln_f(x))


class Glu(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.fc, self.bn, self.out = nn.Linear(inp, 2 * out), nn.BatchNorm1d(2 * out), out

    def forward(self, x):
        x = self.bn(self.fc(x))
        return x[:, :self.out] * torch.sigmoid(x[:, self.out:])


class TabNet(nn.Module):
    """Steps of attention over features, with softmax in place of sparsemax."""

    def __init__(self, features=10):
        super().__init__()
        self.bn, self.first = nn.BatchNorm1d(features), Glu(features, 16)
        self.steps = nn.ModuleList([Glu(features, 16) for _ in range(2)])
        self.masks, self.out = nn.ModuleList([nn.Linear(8, features) for _ in range(2)]), nn.Linear(8, 3)

    def forward(self, x):
        x = self.bn(x)
        prior, total = torch.ones(x.shape[1]), 0
        a = self.first(x)[:, 8:]
        for step, mask in zip(self.steps, self.masks):
            m = torch.softmax(mask(a) * prior, dim=-1)
            prior = prior * (1.3 - m)
            h = step(m * x)
            total = total + F.relu(h[:, :8])
            a = h[:, 8:]
        return self.out(total)


class Conv1dNet(nn.Module):
    """An ECG classifier."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(1, 8, 7, padding=3), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2),
                                      nn.Conv1d(8, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(1))
        self.classifier = nn.Linear(16, 5)

    def forward(self, x):
        return self.classifier(self.features(x).squeeze(-1))


class Tcn(nn.Module):
    """Causal convolutions, which cut what they padded."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(4 if k == 0 else 8, 8, 3, padding=2 * 2 ** k, dilation=2 ** k) for k in range(3)])
        self.skip, self.fc = nn.Conv1d(4, 8, 1), nn.Linear(8, 2)

    def forward(self, x):
        y = x
        for k, conv in enumerate(self.convs):
            out = F.relu(conv(y)[:, :, :-2 * 2 ** k])
            y = out + (self.skip(y) if k == 0 else y)
        return self.fc(y[:, :, -1])


class Siamese(nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(inplace=True), *([nn.BatchNorm2d(4)] if norm else []), nn.MaxPool2d(2), nn.Conv2d(4, 8, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.fc1, self.out = nn.Linear(128, 16), nn.Linear(16, 1)

    def forward_once(self, x):
        x = self.cnn(x)
        return self.fc1(x.view(x.size()[0], -1))

    def forward(self, a, b):
        return self.out(torch.abs(self.forward_once(a) - self.forward_once(b)))


class SqueezeExcite(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(c, c // 4), nn.Linear(c // 4, c)

    def forward(self, x):
        s = x.mean((2, 3))
        s = torch.sigmoid(self.fc2(F.relu(self.fc1(s))))
        return x * s[:, :, None, None]


class InvertedNet(nn.Module):
    """Inverted residuals with squeeze-and-excitation and activations by hand."""

    def __init__(self):
        super().__init__()
        self.stem, self.expand = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 32, 1)
        self.dw, self.se, self.project = nn.Conv2d(32, 32, 3, 1, 1, groups=32), SqueezeExcite(32), nn.Conv2d(32, 8, 1)
        self.pool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 4)

    def swish(self, x):
        return x * torch.sigmoid(x)

    def forward(self, x):
        x = self.swish(self.stem(x))
        y = self.se(self.swish(self.dw(self.swish(self.expand(x)))))
        x = x + self.project(y)
        return self.fc(torch.flatten(self.pool(x), 1))


class Dcgan(nn.Module):
    def __init__(self, part):
        super().__init__()
        if part == "generator":
            self.main = nn.Sequential(nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
                                      nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True), nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False), nn.Tanh())
        else:
            self.main = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32),
                                      nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(32, 1, 4, 1, 0, bias=False), nn.Sigmoid())

    def forward(self, x):
        return self.main(x)


class SuperResolution(nn.Module):
    """pytorch/examples, super_resolution."""

    def __init__(self):
        super().__init__()
        self.relu, self.conv1, self.conv2, self.conv3 = nn.ReLU(), nn.Conv2d(1, 16, 5, 1, 2), nn.Conv2d(16, 8, 3, 1, 1), nn.Conv2d(8, 4, 3, 1, 1)
        self.pixel_shuffle = nn.PixelShuffle(2)

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        return self.pixel_shuffle(self.conv3(x))


class ResidualGenerator(nn.Module):
    """CycleGAN's: reflection padding and instance norm."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.ReflectionPad2d(3), nn.Conv2d(3, 8, 7), nn.InstanceNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 16, 3, 2, 1), nn.InstanceNorm2d(16),
                                   nn.ReLU(inplace=True), nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), nn.ReflectionPad2d(3), nn.Conv2d(8, 3, 7), nn.Tanh())

    def forward(self, x):
        return self.model(x)


class Mixer(nn.Module):
    """MLP-Mixer."""

    def __init__(self):
        super().__init__()
        self.patch, self.norms = nn.Conv2d(3, 16, 8, 8), nn.ModuleList([nn.LayerNorm(16) for _ in range(3)])
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels, self.head = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), nn.Linear(16, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norms[1](x))
        return self.head(self.norms[2](x).mean(1))


class Deep(nn.Module):
    """Deep and wide: columns of numbers and of categories."""

    def __init__(self):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(n, 4) for n in (7, 9, 11)])
        self.bn, self.lin1, self.lin2, self.wide, self.bias = nn.BatchNorm1d(5), nn.Linear(17, 16), nn.Linear(16, 1), nn.Linear(5, 1, bias=False), nn.Parameter(torch.zeros(1))

    def forward(self, x_cat, x_cont):
        x1 = torch.cat([e(x_cat[:, i]) for i, e in enumerate(self.embeds)], 1)
        x = torch.cat([x1, self.bn(x_cont)], 1)
        return self.lin2(F.relu(self.lin1(x))) + self.wide(x_cont) + self.bias


class Calibrated(nn.Module):
    """Learned numbers in forward: a temperature, an input's mean and deviation as buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 0.25, 0.3]).view(1, 3, 1, 1))
        self.conv, self.alpha, self.logit_scale, self.fc = nn.Conv2d(3, 8, 3), nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.ones(1) * 2), nn.Linear(8, 4)
        self.scale, self.shift = nn.Parameter(torch.rand(1, 8, 1, 1)), nn.Parameter(torch.zeros(8, 1, 1))

    def forward(self, x):
        x = (x - self.mean) / self.std
        x = F.relu(self.conv(x)) * self.scale + self.shift
        x = torch.sigmoid(self.alpha) * x.mean(dim=[2, 3]) + (1 - torch.sigmoid(self.alpha)) * x.flatten(2).max(dim=-1).values
        return self.fc(x) / self.logit_scale if False else self.fc(x) * self.logit_scale


class Highway(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.plain, self.out = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 2)

    def forward(self, x):
        for _ in range(2):
            t = torch.sigmoid(self.gate(x))
            x = t * F.relu(self.plain(x)) + (1 - t) * x
        return self.out(x)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine, self.action_head, self.value_head = nn.Linear(4, 32), nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, x):
        x = F.relu(self.affine(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


class Dqn(nn.Module):
    """A dueling network: advantages less their mean."""

    def __init__(self):
        super().__init__()
        self.layer1, self.value, self.advantage = nn.Linear(4, 32), nn.Linear(32, 1), nn.Linear(32, 3)

    def forward(self, x):
        x = F.relu(self.layer1(x))
        a = self.advantage(x)
        return self.value(x) + a - a.mean(1, keepdim=True)


class Poems(nn.Module):
    """A language model of characters: an LSTM that also returns its states."""

    def __init__(self):
        super().__init__()
        self.encoder, self.rnn, self.decoder, self.drop = nn.Embedding(30, 12), nn.LSTM(12, 12, 2, dropout=0.2, batch_first=True), nn.Linear(12, 30), nn.Dropout(0.2)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        output, hidden = self.rnn(self.drop(self.encoder(x)))
        return self.decoder(self.drop(output)), hidden


class Cbam(nn.Module):
    """Attention over channels by one network for two pools, and over places."""

    def __init__(self, c=8):
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, c, 3, padding=1), nn.Linear(c, 3)
        self.avg_pool, self.max_pool, self.conv = nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1), nn.Conv2d(2, 1, 7, padding=3, bias=False)
        self.fc = nn.Sequential(nn.Conv2d(c, c // 2, 1, bias=False), nn.ReLU(), nn.Conv2d(c // 2, c, 1, bias=False))

    def forward(self, x):
        x = self.stem(x)
        x = x * torch.sigmoid(self.fc(self.avg_pool(x)) + self.fc(self.max_pool(x)))
        largest, _ = torch.max(x, dim=1, keepdim=True)
        x = x * torch.sigmoid(self.conv(torch.cat([torch.mean(x, dim=1, keepdim=True), largest], dim=1)))
        return self.out(F.adaptive_avg_pool2d(x, 1).reshape(x.shape[0], -1))


class PointNet(nn.Module):
    """A matrix for each cloud, near to the identity."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.fc1 = nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.Linear(16, 9)
        self.conv2, self.bn2, self.fc2 = nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def matrix(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = nn.Flatten(1)(nn.MaxPool1d(y.size(-1))(y))
        return self.fc1(y).view(-1, 3, 3) + torch.eye(3, requires_grad=True).repeat(x.size(0), 1, 1)

    def forward(self, x):
        x = torch.bmm(torch.transpose(x, 1, 2), self.matrix(x)).transpose(1, 2)
        x = torch.max(F.relu(self.bn2(self.conv2(x))), 2, keepdim=True)[0]
        return F.log_softmax(self.fc2(x.view(-1, 16)), dim=1)


class AttentionLstm(nn.Module):
    """A learned vector weighs the steps."""

    def __init__(self):
        super().__init__()
        self.emb, self.lstm, self.w, self.fc = nn.Embedding(20, 8), nn.LSTM(8, 12, batch_first=True), nn.Parameter(torch.randn(12)), nn.Linear(12, 2)

    def forward(self, x):
        out, _ = self.lstm(self.emb(x))
        alpha = F.softmax(torch.matmul(torch.tanh(out), self.w), dim=1).unsqueeze(-1)
        return self.fc(F.relu(torch.sum(out * alpha, 1)))


class LastStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.lstm, self.fc = nn.Embedding(20, 8), nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 2)

    def forward(self, x, lengths):
        out, _ = self.lstm(self.emb(x))
        return self.fc(out[torch.arange(x.size(0)), lengths - 1])


class Perceiver(nn.Module):
    """Learned queries, which are no function of a record."""

    def __init__(self):
        super().__init__()
        self.latents, self.norm, self.attn, self.fc = nn.Parameter(torch.randn(4, 8)), nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        q = self.latents.unsqueeze(0).expand(x.shape[0], -1, -1)
        y, _ = self.attn(self.norm(q), x, x)
        return self.fc((q + y).mean(1))


class Factorization(nn.Module):
    """A factorization machine."""

    def __init__(self):
        super().__init__()
        self.emb, self.linear, self.bias = nn.Embedding(30, 6), nn.Embedding(30, 1), nn.Parameter(torch.zeros((1,)))

    def forward(self, x):
        e = self.emb(x)
        pairs = 0.5 * torch.sum(torch.sum(e, dim=1) ** 2 - torch.sum(e ** 2, dim=1), dim=1, keepdim=True)
        return torch.sigmoid((torch.sum(self.linear(x), dim=1) + self.bias + pairs).squeeze(1))


class RmsBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.w1, self.w2, self.w3 = nn.Parameter(torch.ones(8)), nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False), nn.Linear(8, 16, bias=False)

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Choices(nn.Module):
    """Comparisons that choose: thresholded activations, a mask by the values, a hinge by hand."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 36, 3)
        self.register_buffer("level", torch.full((1, 4, 1, 1), 0.2))

    def forward(self, x):
        x = self.bn(self.conv(x))
        x = torch.where(x > self.level, x, 0.1 * x)
        x = x.masked_fill((x >= 0.9) & ~(x > 1.5) | (x < -0.2), 0.5)
        x = x * (x <= 1.6).float() + (0.25 > x).to(x.dtype)
        x = torch.where(x != 0.5, x, F.relu(x) - x * x)
        return self.fc(torch.where(x > 0, torch.ones_like(x), x).flatten(1))


class Frames(nn.Module):
    """A network for each frame, whose frames are joined with the records."""

    def __init__(self):
        super().__init__()
        self.cnn, self.lstm, self.fc = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        b, t, c, h, w = x.shape
        y, _ = self.lstm(self.cnn(x.view(b * t, c, h, w)).view(b, t, -1))
        return self.fc(y[:, -1])


class Composed(nn.Module):
    """Functions that are several layers, numbers as ones and zeros, a bag of words, norms with two
    uses."""

    def __init__(self):
        super().__init__()
        self.bag, self.conv, self.group = nn.EmbeddingBag(20, 8), nn.Conv1d(9, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.norm, self.fc, self.out, self.glu = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(4, 3), nn.GLU()
        self.acts = nn.ModuleList([nn.SELU(), nn.CELU(0.7), nn.Softshrink(0.2), nn.Hardshrink(0.1), nn.Threshold(0.05, 0.3), nn.Softsign(), nn.Tanhshrink(), nn.LogSigmoid()])

    def forward(self, ids):
        rows = torch.cat([F.one_hot(ids, 20).to(self.fc.weight.dtype)[..., :8], (ids > 3).to(self.fc.weight.dtype).unsqueeze(-1)], -1)
        x = self.group(F.relu(self.group(self.conv(rows.transpose(1, 2))))).transpose(1, 2)
        x = self.norm(self.norm(x) + self.bag(ids).unsqueeze(1).expand_as(x))
        for act in self.acts:
            x = x + 0.3 * act(self.fc(x))
        return self.out(self.glu(torch.logsumexp(x, dim=1) - torch.exp(-x.mean(1))))


class PaddingMask(nn.Module):
    """Keys that are hidden where an id is 0: PyTorch's encoder, and attention by hand."""

    def __init__(self, causal=False):
        super().__init__()
        self.emb, layer = nn.Embedding(20, 16, padding_idx=0), nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True)
        self.encoder, self.q, self.k, self.v, self.fc, self.causal = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3), causal

    def attention(self, q, k, v, mask):
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(mask == 0, -1e9)
        return torch.matmul(scores.softmax(dim=-1), v)

    def forward(self, src):
        x = self.emb(src) * math.sqrt(16)
        if self.causal:
            x = self.encoder(x, torch.triu(torch.full((src.size(1), src.size(1)), float("-inf")), 1), src == 0)
        else:
            x = self.encoder(x, src_key_padding_mask=(src == 0))
        n, t, d = x.shape
        q, k, v = (f(x).view(n, t, 4, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = self.attention(q, k, v, (src != 0).unsqueeze(1).unsqueeze(2)).transpose(1, 2).reshape(n, t, d)
        mask = (src != 0).unsqueeze(-1)
        return self.fc((x * mask).sum(1) / mask.sum(1).clamp(min=1))


class SharedEncoder(nn.Module):
    """Sentence pairs: one encoder for both, called twice in a row, and attention between them by a
    module with two uses."""

    def __init__(self):
        super().__init__()
        self.emb, self.encoder = nn.Embedding(20, 16), nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True), 1, enable_nested_tensor=False)
        self.cross, self.norm, self.fc = nn.MultiheadAttention(16, 2, batch_first=True), nn.LayerNorm(16), nn.Linear(64, 3)

    def encode(self, ids):
        x = self.emb(ids)
        for _ in range(2):
            x = self.encoder(x)
        return x

    def forward(self, a, b):
        a, b = self.encode(a), self.encode(b)
        a, b = self.norm(a + self.cross(a, b, b)[0]).mean(1), self.norm(b + self.cross(b, a, a, need_weights=False)[0]).mean(1)
        return self.fc(torch.cat([a, b, torch.abs(a - b), a * b], dim=-1))


def of_torchvision(name, **settings):
    def make():
        from torchvision import models
        found = getattr(models.segmentation, name, None) or getattr(models, name)
        more = {"weights_backbone": None} if name.startswith(("fcn", "deeplab", "lraspp")) else {}
        return found(weights=None, **more, **settings)
    return make


def torchvision_row(name, inputs=IMAGE, output=None, narrow=IMAGE, **settings):
    """narrow: the inputs in f64, where images of the published size take minutes a step."""
    return (name, of_torchvision(name, **settings), inputs, {"output": output, "narrow": narrow})


NETWORKS = [
    ("lenet", LeNet, DIGIT, {}), ("mnist", Mnist, DIGIT, {}), ("tabular", Tabular, ["x:f32:12"], {}), ("cifar resnet", CifarResNet, ["x:f32:3x32x32"], {}),
    ("unet", UNet, ["x:f32:3x18x22"], {}), ("unet nearest", lambda: UNet("nearest"), ["x:f32:3x16x24"], {}), ("unet bilinear", lambda: UNet("bilinear"), ["x:f32:3x16x24"], {}),
    ("autoencoder", Autoencoder, DIGIT, {}), ("conv autoencoder", ConvAutoencoder, DIGIT, {}), ("vae", Vae, DIGIT, {}),
    ("lstm classifier", LstmClassifier, WORDS, {}), ("lstm both ways", lambda: LstmClassifier(2, True, 0.5), WORDS, {}), ("lstm series", SeriesLstm, ["x:f32:9x4"], {}),
    ("lstm tagger", Tagger, WORDS, {}), ("gru classifier", GruClassifier, WORDS, {}), ("gru both ways", lambda: GruClassifier(True), WORDS, {}),
    ("gru series", lambda: SeriesLstm(nn.GRU), ["x:f32:9x4"], {}), ("poems", Poems, WORDS, {"output": "0"}),
    ("text cnn", TextCnn, WORDS, {}), ("text cnn 2d", lambda: TextCnn(False), WORDS, {}), ("fasttext", FastText, WORDS, {}),
    ("transformer", TransformerClassifier, WORDS, {}), ("transformer steps first", lambda: TransformerClassifier(True), WORDS, {}),
    ("einsum attention", lambda: SelfAttention(16, 4), ["x:f32:7x16"], {}), ("vit by hand", Vit, ["x:f32:3x32x32"], {}), ("vit layer scale", lambda: Vit(True), ["x:f32:3x32x32"], {}),
    ("mingpt", SmallGpt, WORDS, {}), ("mlp-mixer", Mixer, ["x:f32:3x32x32"], {}), ("tabnet", TabNet, ["x:f32:10"], {}), ("deep and wide", Deep, ["x_cat:i64:3", "x_cont:f32:5"], {}),
    ("conv1d", Conv1dNet, ["x:f32:1x64"], {}), ("tcn", Tcn, ["x:f32:4x20"], {}), ("siamese", Siamese, ["a:f32:1x28x28", "b:f32:1x28x28"], {}),
    ("siamese norm", lambda: Siamese(True), ["a:f32:1x28x28", "b:f32:1x28x28"], {}), ("inverted residual", InvertedNet, ["x:f32:3x16x16"], {}),
    ("dcgan generator", lambda: Dcgan("generator"), ["z:f32:16x1x1"], {}), ("dcgan discriminator", lambda: Dcgan("discriminator"), ["x:f32:1x16x16"], {}),
    ("super resolution", SuperResolution, ["x:f32:1x12x12"], {}), ("cyclegan", ResidualGenerator, ["x:f32:3x12x12"], {}), ("calibrated", Calibrated, ["x:f32:3x8x8"], {}),
    ("cbam", Cbam, ["x:f32:3x12x12"], {}), ("pointnet", PointNet, ["x:f32:3x20"], {}), ("attention lstm", AttentionLstm, WORDS, {}),
    ("last step", LastStep, ["ids:i64:7", "lengths:i64"], {}), ("perceiver", Perceiver, ["x:f32:6x8"], {}), ("factorization", Factorization, ["x:i64:3"], {}),
    ("rms block", RmsBlock, ["x:f32:5x8"], {}), ("choices", Choices, ["x:f32:1x8x8"], {}), ("frames", Frames, ["x:f32:3x1x8x8"], {}), ("composed", Composed, ["ids:i64:6"], {}), ("padding mask", PaddingMask, WORDS, {}), ("shared encoder", SharedEncoder, ["a:i64:7", "b:i64:9"], {}), ("highway", Highway, ["x:f32:10"], {}), ("actor critic", ActorCritic, ["x:f32:4"], {"output": "0"}), ("dueling dqn", Dqn, ["x:f32:4"], {}),
    *(torchvision_row(n) for n in ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "squeezenet1_1", "shufflenet_v2_x1_0", "efficientnet_b0", "mnasnet1_0")),
    *(torchvision_row(n) for n in ("resnet50", "resnext50_32x4d", "wide_resnet50_2", "densenet121", "convnext_tiny", "regnet_y_400mf", "regnet_x_400mf")),
    *(torchvision_row(n, ["pixels:f32:3x224x224"], num_classes=10) for n in ("alexnet", "vgg11_bn", "vgg16")),
    torchvision_row("googlenet", output="logits"), torchvision_row("inception_v3", ["pixels:f32:3x299x299"], "logits", ["pixels:f32:3x299x299"]), torchvision_row("vit_b_16", image_size=64), torchvision_row("swin_t"),
    torchvision_row("efficientnet_v2_s"), torchvision_row("maxvit_t", ["pixels:f32:3x224x224"], narrow=["pixels:f32:3x224x224"], num_classes=10),
    *(torchvision_row(n, output="out") for n in ("fcn_resnet50", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")),
]
