"""Runs unittest tests, and prints a line of JSON for each: run.py DIRECTORY NAME..."""

import json
import sys
import unittest


class Result(unittest.TestResult):
    """Prints name, outcome (pass, fail, skip) and reason of each test as it ends."""

    def __init__(self, out):
        super().__init__()
        self.out, self.now, self.outcome, self.text = out, None, "pass", []
        self.buffer = True  # what a test prints is shown with its failure

    def startTest(self, test):
        super().startTest(test)
        self.now, self.outcome, self.text = test, "pass", []

    def stopTest(self, test):
        super().stopTest(test)
        self.report(test)
        self.now = None

    def report(self, test):
        line = {"name": test.id().split(".", 1)[-1], "outcome": self.outcome, "text": "\n".join(self.text)}
        print(json.dumps(line), file=self.out, flush=True)

    def failed(self, test, err):
        self.outcome = "fail"
        self.text.append(self._exc_info_to_string(err, test))
        if self.now is None:  # outside the tests, in setUpClass for one
            self.report(test)

    addError = addFailure = failed

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.text.append(str(subtest))
            self.failed(test, err)

    def addSkip(self, test, reason):
        self.outcome, self.text = "skip", [reason]
        if self.now is None:
            self.report(test)


def main():
    sys.path.insert(0, sys.argv[1])
    suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:])
    out = sys.stdout
    suite.run(Result(out))


main()
