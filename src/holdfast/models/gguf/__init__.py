"""GGUF files: reader, names, types and dequantisation."""
