"""Engine replicas on Ray Serve. Imported only where replicas are asked for."""
