from dataclasses import dataclass
DISTANCE = 0.2
@dataclass
class Group:
    pass
def find(table, distance): ...
