def write(path):
    return 0
