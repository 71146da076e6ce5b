# Overlay for any of the paper's GPT-2 recipes: the rows GW of Tables 2 to 5 and 8, the same models trained
# on GneissWeb from scratch.
#   python data/gneissweb/prepare.py
#   python train.py config/cofrgenet_f.py config/ablate/gneissweb.py --out_dir=out/f_gw
dataset = "data/gneissweb/gpt2"
