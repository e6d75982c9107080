"""The worker: runs step plans on the device. It keeps no request state."""
