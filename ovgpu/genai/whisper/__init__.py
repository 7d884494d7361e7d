"""Recognition of speech by Whisper models."""
