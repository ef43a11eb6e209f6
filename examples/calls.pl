0.1::burglary. 0.2::earthquake.
0.9::alarm :- burglary, earthquake.
0.8::alarm :- burglary, \+earthquake.
0.1::alarm :- \+burglary, earthquake.
0.7::awake(mary). 0.4::awake(john). 0.6::awake(ann).
calls(X) :- alarm, awake(X).
calls(X) :- earthquake, awake(X), near(X).
0.3::near(mary). 0.5::near(john). 0.2::near(ann).
query(burglary). query(earthquake). query(calls(mary)). query(calls(john)). query(calls(ann)).
