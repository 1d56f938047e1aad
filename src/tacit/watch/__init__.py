"""The live page of `tacit watch`: reads a folder of results again and again, writes nothing, answers a browser."""
