"""The networks of the paper: LeNet-5, VGG-16, ResNet-18 and ResNet-34, as plain modules."""

from pamerge.zoo.lenet import LeNet5, lenet5
from pamerge.zoo.resnet import ResNet, resnet18, resnet34
from pamerge.zoo.vgg import VGG, vgg16

__all__ = ["VGG", "LeNet5", "ResNet", "lenet5", "resnet18", "resnet34", "vgg16"]
