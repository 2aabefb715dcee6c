#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds that are messages, and those composed of other seeds, with classes that protoc
makes from the shipped .proto. The version of the protocol is that of wire.h: run this parsed_again
after it has changed, because the seeds are refused at their first field otherwise.

Needs protobuf-compiler and python3-protobuf. This script does not write the seeds
corpus/wire/frame_*, which are older.
"""
import seeds.answers
import seeds.files
import seeds.frames
import seeds.ops
import seeds.refused
import seeds.unary
