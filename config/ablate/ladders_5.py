# The paper's grid: 5 ladders in an ensemble; on top of any CoFrGeNet.
#   python train.py config/cofrgenet_f.py config/ablate/ladders_5.py --out_dir=out/f_ladders_5
cf_ladders = 5
