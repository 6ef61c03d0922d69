// Package nnrp is the wire codec of NNRP/1-preview1 (code-level identity NNRP/1.0): the 40-byte common header, every message of
// section 9 with its metadata, body blocks, tensor sections, tile indices and control extensions.
//
// It knows bytes alone: no network, no clock, no state (package session), no transport (package quictransport), no compression
// (package lz4codec, behind Codec). All numbers are little-endian. Append methods add a whole message to a slice; Parse methods
// read metadata and body, check every length before they use it, and alias the input instead of copying it. What a parser accepts,
// the encoder writes back byte for byte.
//
// Errors of parsers are *Error: the code of section 16.2, its scope, and the offset of the offending field from the first byte of
// the message's header.
package nnrp
