#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds that are messages, and those put together from others, with classes that protoc
makes from the shipped .proto. The version of the protocol is wire.h's: run this again when it
changes, or the seeds are refused at their first field.

Needs protobuf-compiler and python3-protobuf. The seeds corpus/wire/frame_* are older than this and
stay as they are.
"""
import seeds.answers
import seeds.files
import seeds.frames
import seeds.ops
import seeds.refused
import seeds.unary
