# Overlay for any of the paper's GPT-2 recipes: the rows GW of Tables 2 to 5 and 8, read as the same models
# trained on GneissWeb from scratch: 600,000 steps are 8.4 passes over its 35B tokens. Section 5.1 can be
# read as training on OpenWebText first (--init_from=), and Table 4 has 2.2 times the hours for GW.
#   python data/gneissweb/prepare.py
#   python train.py config/cofrgenet_f.py config/ablate/gneissweb.py --out_dir=out/f_gw
dataset = "data/gneissweb/gpt2"
