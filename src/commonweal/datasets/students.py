"""Students of 17 degree courses: who graduates, drops out or is still enrolled?

Realinho, Machado, Baptista and Martins, Predict Students' Dropout and Academic Success, UCI Machine
Learning Repository, 2021, CC BY 4.0; part of this package. A client is a course with 12 to 766
students. The features are what is known after the first semester; nationality and the parents'
education and occupation are left out.
"""

from importlib.resources import as_file, files

from commonweal.data.federation import Federation
from commonweal.datasets.pools import Pool
from commonweal.datasets.table import table


def students(clients: int | None = None, test: float = 0.2, seed: int = 0) -> Federation | Pool:
    """4,424 students, 17 courses, 3 classes; score: accuracy

    clients: how many of the courses to use
    test: the share of each course's students that is tested
    seed: which students and courses
    """
    with as_file(files("commonweal.datasets") / "_data" / "students.csv") as path:
        return table(
            str(path), label="outcome", client="course", clients=clients, test=test, seed=seed
        )


ENTRIES = {"students": students}
