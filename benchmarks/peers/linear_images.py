#!/usr/bin/env python3
"""The best linear classifier of the images that train_resnet and train_vit train on: what they have to beat.

    benchmarks/peers/linear_images.py
    benchmarks/peers/linear_images.py --data=FOLDER --penalty=0.001 --steps=300

Logistic regression on standardised pixels: the mean cross-entropy of the training images plus half the penalty times the sum of
squared weights, made small by L-BFGS from zeros. Prints loss and accuracy on the test images, on stdout, as it goes. Needs NumPy:
apt-get install python3-numpy, or pip install numpy.
"""

import argparse
import collections
import pathlib
import sys

try:
    import numpy as np
except ImportError as error:
    sys.exit(f'NumPy cannot be had: {error}; apt-get install python3-numpy, or pip install numpy')

HISTORY = 10  # pairs of steps and gradient differences that L-BFGS keeps


def read_idx(path, num_dims):
    """The array of bytes in an IDX file of so many dims."""
    data = path.read_bytes()
    header = np.frombuffer(data, '>u4', 1 + num_dims)
    if header[0] != 0x800 + num_dims:
        sys.exit(f"'{path}': expected an IDX file of bytes with {num_dims} dims")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * num_dims).reshape(header[1:].astype(int))


def read_set(folder, name):
    """Images as rows of pixels, and labels."""
    images = read_idx(folder / f'{name}-images-idx3-ubyte', 3)
    return images.reshape(len(images), -1).astype(np.float32), read_idx(folder / f'{name}-labels-idx1-ubyte', 1)


class Regression:
    """The loss of weights [pixels + 1, classes], the last row of which is added for every image, and its gradient."""

    def __init__(self, pixels, labels, penalty):
        self.pixels, self.labels, self.penalty = pixels, labels, penalty
        self.rows = np.arange(len(labels))

    def __call__(self, flat):
        weights = flat.reshape(self.pixels.shape[1] + 1, -1)
        scores = (self.pixels @ weights[:-1].astype(np.float32) + weights[-1]).astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        totals = np.log(np.exp(scores).sum(axis=1))
        loss = (totals - scores[self.rows, self.labels]).mean()
        errors = np.exp(scores - totals[:, None])
        errors[self.rows, self.labels] -= 1
        errors /= len(self.labels)
        gradient = np.empty_like(weights)
        gradient[:-1] = self.pixels.T @ errors.astype(np.float32) + self.penalty * weights[:-1]
        gradient[-1] = errors.sum(axis=0)
        return loss + self.penalty / 2 * (weights[:-1] ** 2).sum(), gradient.ravel()


def direction(gradient, pairs):
    """Where L-BFGS goes: minus the gradient times its estimate of the inverse Hessian (Nocedal and Wright, algorithm 7.4)."""
    result = -gradient
    factors = []
    for step, change in reversed(pairs):
        factors.append(step @ result / (step @ change))
        result -= factors[-1] * change
    if pairs:
        step, change = pairs[-1]
        result *= (step @ change) / (change @ change)
    for (step, change), factor in zip(pairs, reversed(factors)):
        result += (factor - change @ result / (step @ change)) * step
    return result


def minimise(function, start, num_steps, on_step):
    """L-BFGS with steps that are halved until the loss falls enough."""
    at = start
    loss, gradient = function(at)
    pairs = collections.deque(maxlen=HISTORY)
    for step in range(1, num_steps + 1):
        towards = direction(gradient, pairs)
        slope = gradient @ towards
        rate = 1 if pairs else 1 / np.linalg.norm(gradient)
        while True:
            there = at + rate * towards
            new_loss, new_gradient = function(there)
            if new_loss <= loss + 1e-4 * rate * slope:
                break
            rate /= 2
            if rate < 1e-10:
                return at
        if (there - at) @ (new_gradient - gradient) > 0:
            pairs.append((there - at, new_gradient - gradient))
        at, loss, gradient = there, new_loss, new_gradient
        on_step(step, at, loss)
    return at


def main():
    tree = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data', type=pathlib.Path, default=tree / 'data/fashion-mnist', help='folder with the four IDX files')
    parser.add_argument('--penalty', type=float, default=1e-3, help='of the sum of squared weights')
    parser.add_argument('--steps', type=int, default=160, help='steps of L-BFGS')
    parser.add_argument('--every', type=int, default=20, help='steps between lines')
    options = parser.parse_args()
    pixels, labels = read_set(options.data, 'train')
    test_pixels, test_labels = read_set(options.data, 't10k')
    mean, deviation = pixels.mean(axis=0), pixels.std(axis=0)
    deviation[deviation == 0] = 1
    pixels, test_pixels = (pixels - mean) / deviation, (test_pixels - mean) / deviation

    def on_step(step, flat, loss):
        if step % options.every != 0 and step != options.steps:
            return
        weights = flat.reshape(pixels.shape[1] + 1, -1)
        scores = test_pixels @ weights[:-1].astype(np.float32) + weights[-1]
        print(f'step {step:4} loss {loss:.4f} test accuracy {(scores.argmax(axis=1) == test_labels).mean():.4f}', flush=True)

    num_classes = int(labels.max()) + 1
    minimise(Regression(pixels, labels, options.penalty), np.zeros((pixels.shape[1] + 1) * num_classes), options.steps, on_step)


if __name__ == '__main__':
    main()
